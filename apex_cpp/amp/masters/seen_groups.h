#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

namespace apex::amp::detail {

/// Which tensors an optimizer's groups held, to tell cheaply whether they hold others: programs write into groups in ways that
/// the optimizer does not see. Holds addresses: whoever asks keeps the tensors alive, or looks again at those it does not.
class SeenGroups {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  SeenGroups() = default;
  explicit SeenGroups(const Groups& groups);

  bool still(const Groups& groups) const;

 private:
  std::vector<std::vector<const at::TensorImpl*>> groups_;
};

}  // namespace apex::amp::detail
