#include <apex_cpp/amp/torch_amp/unscale_grads.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace apex::amp::detail {
namespace {

/// What one kernel call takes: gradients of one device and dtype.
struct GradList {
  c10::Device device;
  c10::ScalarType dtype;
  std::vector<at::Tensor> grads;
};

void check_no_float16(torch::optim::Optimizer& optimizer) {
  size_t group_index = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (size_t i = 0; i < group.params().size(); ++i) {
      const auto& grad = group.params()[i].grad();
      TORCH_CHECK_VALUE(!grad.defined() || grad.scalar_type() != at::kHalf, "Attempting to unscale FP16 gradients: parameter ",
                        i, " of group ", group_index, ", of shape ", grad.sizes(),
                        ", has one. Half cannot hold unscaled gradients: keep the parameters in float32 and cast in "
                        "amp::autocast, or let amp::initialize(model, optimizer, \"O2\") keep float32 masters.");
    }
    ++group_index;
  }
}

/// The dense tensor that holds a gradient's values.
at::Tensor values_of(at::Tensor& grad) {
  if (!grad.is_sparse()) return grad;
  if (grad.scalar_type() == at::kHalf) grad = grad.coalesce();
  return grad._values();
}

void add_to(std::vector<GradList>& lists, at::Tensor grad) {
  auto list = std::find_if(lists.begin(), lists.end(), [&](const GradList& known) {
    return known.device == grad.device() && known.dtype == grad.scalar_type();
  });
  if (list == lists.end()) list = lists.insert(lists.end(), {grad.device(), grad.scalar_type(), {}});
  list->grads.push_back(std::move(grad));
}

at::Tensor& found_inf_on(c10::Device device, std::vector<at::Tensor>& found_infs) {
  for (auto& found_inf : found_infs) {
    if (found_inf.device() == device) return found_inf;
  }
  return found_infs.emplace_back(at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device)));
}

}  // namespace

std::vector<at::Tensor> unscale_grads(torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale,
                                      Float16Grads float16_grads) {
  if (float16_grads == Float16Grads::refused) check_no_float16(optimizer);
  const at::NoGradGuard no_grad;
  std::vector<GradList> lists;
  for (auto& group : optimizer.param_groups()) {
    for (auto& param : group.params()) {
      if (param.grad().defined()) add_to(lists, values_of(param.mutable_grad()));
    }
  }
  std::vector<at::Tensor> found_infs;
  for (const auto& list : lists) {
    at::_amp_foreach_non_finite_check_and_unscale_(list.grads, found_inf_on(list.device, found_infs),
                                                   inv_scale.to(list.device, /*dtype=*/at::kFloat, /*non_blocking=*/true));
  }
  return found_infs;
}

}  // namespace apex::amp::detail
