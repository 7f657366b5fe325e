#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace apex::parallel::detail {

/// Calls back whenever a backward pass has added to the gradient of a parameter, on the thread that did. The calls end with
/// this object.
class GradHooks {
 public:
  using Call = std::function<void(size_t index)>;

  GradHooks() = default;
  GradHooks(const GradHooks&) = delete;
  GradHooks& operator=(const GradHooks&) = delete;
  ~GradHooks();

  /// `call(index)` for the gradient of `param`, which needs one.
  void add(const at::Tensor& param, size_t index, const Call& call);
  bool has(size_t index) const { return hooks_.count(index) != 0; }
  /// Whether backward passes still come by: not once `param`, which was given with this index, was converted or moved.
  bool hears(const at::Tensor& param, size_t index) const;

 private:
  struct Hook {
    decltype(torch::autograd::Edge::function) accumulator;  // which the parameter itself only refers to weakly
    uintptr_t key;
  };
  std::map<size_t, Hook> hooks_;
};

}  // namespace apex::parallel::detail

namespace apex::amp::detail {
struct Session;
}

namespace apex::parallel::detail {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named);

/// A module's parameters and buffers by name, each TensorImpl once, and the session of `amp::initialize` that patched it.
struct ModuleState {
  explicit ModuleState(const torch::nn::Module& module);

  /// Errors: ValueError, on every rank, which names the first line that differs: a parameter or buffer by its name, shape,
  /// memory order, dtype, kind of device and whether it is trained. `what` begins the message.
  void check_same_on_all_ranks(const ProcessGroup& group, const std::string& what) const;
  /// Errors: ValueError, on every rank, which names the first property of the opt level or loss scale that differs.
  void check_same_amp_on_all_ranks(const ProcessGroup& group) const;
  /// Errors: TypeError naming a trained parameter whose gradients cannot be summed here.
  void check_trained_dtypes() const;

  std::vector<NamedTensor> params, buffers;
  std::shared_ptr<amp::detail::Session> session;  // null without amp
};

}  // namespace apex::parallel::detail
