#pragma once
// Four small networks in which faults can be planted, and their training.
#include <apex_cpp/amp.h>
#include <apex_cpp/amp/doctor.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace apex::test {

using Plant = std::function<torch::Tensor(const torch::Tensor&)>;

/// A network that calls `plant` in its forward pass, at one of its places, each of which is 16-bit at every level; without one
/// it is healthy.
struct FaultyNet : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor x) = 0;
  /// The tensor, through the plant where it stands here.
  torch::Tensor here(int at, const torch::Tensor& x) const { return plant && at == place ? plant(x) : x; }
  Plant plant;
  int place = 0;
};

inline constexpr int kPlaces = 3;
/// The module around each place: what the doctor has to name for operators without parameters.
std::string module_at(const std::string& kind, int place);

/// "mlp", "conv", "recurrent" or "attention".
const std::vector<std::string>& network_kinds();
std::shared_ptr<FaultyNet> make_net(const std::string& kind);

/// The program that a doctor runs: regression on batches that follow from the step's number.
struct FaultyProgram {
  std::string kind;
  Plant plant;
  int place = 0;
  void operator()(const amp::OptLevel& level, amp::DoctorRun& run) const;
  /// The same without a doctor: the losses of that many steps.
  std::vector<double> losses(const amp::OptLevel& level, int64_t steps) const;

 private:
  void train(const amp::OptLevel& level, const std::function<bool()>& next,
             const std::function<void(const torch::Tensor& loss)>& on_loss) const;
};

}  // namespace apex::test
