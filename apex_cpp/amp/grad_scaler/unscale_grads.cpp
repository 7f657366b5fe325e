#include <apex_cpp/amp/grad_scaler/unscale_grads.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>

#include <algorithm>
#include <utility>

#include "kernels/moved_to.h"
#include "kernels/multi_tensor.h"

namespace apex::amp::detail {
namespace {

/// The tensors of one device, for one kernel call.
struct OnDevice {
  c10::Device device;
  std::vector<at::Tensor> tensors;
};

class ByDevice {
 public:
  void add(at::Tensor tensor) {
    auto found = std::find_if(parts_.begin(), parts_.end(), [&](const auto& part) { return part.device == tensor.device(); });
    if (found == parts_.end()) found = parts_.insert(parts_.end(), {tensor.device(), {}});
    found->tensors.push_back(std::move(tensor));
  }

  /// Calls look(found_inf, part) for each device, and returns the found_infs.
  template <class Look>
  std::vector<at::Tensor> found_infs(const Look& look) const {
    std::vector<at::Tensor> found_infs;
    for (const OnDevice& part : parts_) {
      const at::Tensor found_inf = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(part.device));
      look(found_inf, part);
      found_infs.push_back(found_inf.to(at::kFloat).reshape({}));
    }
    return found_infs;
  }

 private:
  std::vector<OnDevice> parts_;
};

/// Calls visit(param, i, group_index) for every parameter with a gradient.
template <class Visit>
void for_each_place(const torch::optim::Optimizer& optimizer, const Visit& visit) {
  size_t group_index = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (size_t i = 0; i < group.params().size(); ++i) {
      if (group.params()[i].grad().defined()) visit(group.params()[i], i, group_index);
    }
    ++group_index;
  }
}

void check_no_float16(const torch::optim::Optimizer& optimizer) {
  for_each_place(optimizer, [](const at::Tensor& param, size_t i, size_t group_index) {
    TORCH_CHECK_VALUE(param.grad().scalar_type() != at::kHalf, "Attempting to unscale FP16 gradients: parameter ", i,
                      " of group ", group_index, ", of shape ", param.sizes(),
                      ", has one. Half cannot hold unscaled gradients: keep the parameters in float32 and cast in "
                      "amp::autocast, or let amp::initialize(model, optimizer, \"O2\") keep float32 masters and use "
                      "amp::scale_loss in place of GradScaler.");
  });
}

/// The dense tensor that holds a gradient's values.
at::Tensor values_of(const at::Tensor& grad) { return grad.is_sparse() ? grad._values() : grad; }

void check_writable(const torch::optim::Optimizer& optimizer) {
  for_each_place(optimizer, [](const at::Tensor& param, size_t i, size_t group_index) {
    const at::Tensor values = values_of(param.grad());
    TORCH_CHECK_VALUE(is_writable(values), "GradScaler: the gradient of parameter ", i, " of group ", group_index,
                      ", of shape ", param.sizes(),
                      ", repeats elements in memory or was made in inference mode, so it cannot be unscaled in place. Give the "
                      "parameter a clone() of it.");
  });
}

void check_reduced(const torch::optim::Optimizer& optimizer) {
  if (!GradSync::any_is_unreduced()) return;
  for_each_place(optimizer, [](const at::Tensor& param, size_t i, size_t group_index) {
    TORCH_CHECK(!has_unreduced_grad(param), "GradScaler found that the gradient of parameter ", i, " of group ", group_index,
                ", of shape ", param.sizes(),
                ", is not summed over the ranks: all backward passes since the last reduction were within no_sync(), or after "
                "disable_allreduce(). Run the last pass outside of it, or drop the gradients with zero_grad().");
  });
}

at::Tensor summed_if_float16(const at::Tensor& grad) {
  return grad.is_sparse() && grad.scalar_type() == at::kHalf ? grad.coalesce() : grad;
}

template <class Visit>
void for_each_grad(const torch::optim::Optimizer& optimizer, const Visit& visit) {
  for (const at::Tensor& param : params_of(optimizer.param_groups())) {
    if (param.grad().defined()) visit(param.grad());
  }
}

}  // namespace

std::vector<at::Tensor> unscale_grads(torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale) {
  if (auto* sharded = dynamic_cast<ShardedOptimizer*>(&optimizer)) {
    const auto shards = sharded->grad_shards();
    const at::Tensor found_inf = shards->found_inf();
    shards->unscale(inv_scale);
    return {found_inf};
  }
  check_no_float16(optimizer);
  check_writable(optimizer);
  check_reduced(optimizer);
  separate_grads_of_groups(optimizer.param_groups());
  const at::NoGradGuard no_grad;
  ByDevice grads;
  std::vector<std::pair<at::Tensor, at::Tensor>> copied;  // kernels need dense memory
  for_each_grad(optimizer, [&](const at::Tensor& grad) {
    const at::Tensor values = values_of(grad), without_gaps = dense(values);
    if (!without_gaps.is_same(values)) copied.emplace_back(values, without_gaps);
    grads.add(without_gaps);
  });
  auto found_infs = grads.found_infs([&](const at::Tensor& found_inf, const OnDevice& part) {
    const at::Tensor factor = kernels::moved_to(part.device, inv_scale);
    kernels::multi_tensor_unscale(found_inf, part.tensors, part.tensors, factor);
  });
  for (const auto& [values, copy] : copied) values.copy_(copy);
  return found_infs;
}

std::vector<at::Tensor> check_grads(const torch::optim::Optimizer& optimizer) {
  if (auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer)) return {sharded->grad_shards()->found_inf()};
  check_reduced(optimizer);
  const at::NoGradGuard no_grad;
  ByDevice grads;
  for_each_grad(optimizer, [&](const at::Tensor& grad) { grads.add(dense(values_of(summed_if_float16(grad)))); });
  return grads.found_infs(
      [](const at::Tensor& found_inf, const OnDevice& part) { kernels::multi_tensor_check_finite(found_inf, part.tensors); });
}

}  // namespace apex::amp::detail
