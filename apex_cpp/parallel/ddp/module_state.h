#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/parallel/processes/process_group.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

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
