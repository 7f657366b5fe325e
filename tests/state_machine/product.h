#pragma once
// The same program on the library.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>

#include <any>
#include <deque>
#include <memory>
#include <vector>

#include "tests/state_machine/events.h"

namespace apex::test {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const std::vector<std::pair<int, torch::Tensor>>& parameters);
  torch::Tensor forward(torch::Tensor x) { return x; }
};
TORCH_MODULE(Net);

/// The handle of an optimizer whose class is known, behind one interface.
class Handle {
 public:
  virtual ~Handle() = default;
  virtual torch::optim::Optimizer& optimizer() = 0;
  virtual void zero_grad(bool set_to_none) = 0;
  virtual void add_param_group(std::vector<torch::Tensor> params) = 0;
  virtual torch::Tensor momentum_of(const torch::Tensor& param) = 0;
};

class Product {
 public:
  explicit Product(const Config& config);
  ~Product();

  void apply(const Event& event);
  State state();

 private:
  void initialize();
  void initialize_again(const Event& event);
  void train_bystander(const Event& event);
  void backward(const Event& event);
  void load_state(const Event& event);
  void add_group(const Event& event);
  void model_zero_grad(bool set_to_none);
  bool is_newest() const;  // whether amp::state_dict and amp::load_state_dict are of this session
  torch::optim::Optimizer& optimizer(int index) { return handles_[index]->optimizer(); }
  torch::Tensor master_of(int param);

  Config config_;
  std::array<torch::Tensor, kParams> params_;
  std::array<int, kParams> owner_;  // the optimizer that holds it, or -1
  Net net_{nullptr};
  std::vector<std::unique_ptr<Handle>> handles_;
  std::deque<amp::LossScaler>* scalers_ = nullptr;
  std::vector<std::any> kept_;  // handles that are out of use
  std::optional<amp::StateDict> saved_;
  bool threw_ = false;
};

}  // namespace apex::test
