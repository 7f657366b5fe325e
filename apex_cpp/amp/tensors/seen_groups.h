#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

namespace apex::amp::detail {

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// Which tensors an optimizer's groups held, to tell cheaply whether they hold others: programs write into groups in ways that
/// the optimizer does not see. Holds addresses: whoever must not take a new tensor for one that is gone keeps those alive.
class SeenGroups {
 public:
  SeenGroups() = default;
  explicit SeenGroups(const ParamGroups& groups);

  bool still(const ParamGroups& groups) const;

 private:
  std::vector<std::vector<const at::TensorImpl*>> groups_;
};

}  // namespace apex::amp::detail
