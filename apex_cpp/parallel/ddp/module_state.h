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

/// Calls a function after a backward pass has accumulated into a parameter's gradient, on that thread. The hooks are removed by
/// the destructor.
class GradHooks {
 public:
  using Call = std::function<void(size_t index)>;

  GradHooks() = default;
  GradHooks(const GradHooks&) = delete;
  GradHooks& operator=(const GradHooks&) = delete;
  ~GradHooks();

  /// Calls `call(index)` for the gradient of `param`, which must require one.
  void add(const at::Tensor& param, size_t index, const Call& call);
  bool has(size_t index) const { return hooks_.count(index) != 0; }
  /// Whether the hook of `param`, added with `index`, is still in effect: not after `param` was converted or moved.
  bool hears(const at::Tensor& param, size_t index) const;

 private:
  struct Hook {
    decltype(torch::autograd::Edge::function) accumulator;  // the parameter only has a weak reference to it
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

  /// Errors: ValueError, on every rank, with the first difference between ranks in a parameter's or buffer's name, shape,
  /// memory order, dtype, kind of device or requires_grad. `what` begins the message.
  void check_same_on_all_ranks(const ProcessGroup& group, const std::string& what) const;
  /// Errors: ValueError, on every rank, with the first difference in the opt level's properties or the loss scales.
  void check_same_amp_on_all_ranks(const ProcessGroup& group) const;
  /// Errors: TypeError with the name of a trained parameter whose dtype is not supported.
  void check_trained_dtypes() const;

  /// Gives all ranks rank 0's FP32 masters, after its weights: they may hold more, if rank 0 alone has loaded them. Masters
  /// that some ranks lack, such as of frozen weights, become the weights' values: those ranks begin with them when they train.
  void share_masters(const ProcessGroup& group) const;

  std::vector<NamedTensor> params, buffers;
  std::shared_ptr<amp::detail::Session> session;  // null without amp
};

}  // namespace apex::parallel::detail
