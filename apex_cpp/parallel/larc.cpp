#include <apex_cpp/parallel/larc.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/reciprocal.h>

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>

#include <cmath>
#include <map>

#include "kernels/moved_to.h"
#include "kernels/optimizers.h"

namespace apex::parallel::detail {
namespace {

// `unscales`: whether the step unscales them, which amp::GradScaler, too, refuses for float16.
void check_gradients(const std::vector<at::Tensor>& params, bool unscales) {
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& grad = params[i].grad();
    if (!grad.defined()) continue;
    TORCH_CHECK(grad.layout() == at::kStrided, "LARC: the gradient of parameter ", i, " of its group, of shape ",
                params[i].sizes(),
                ", is sparse; LARC takes dense gradients. Make the embedding dense (sparse=false), or give it to an optimizer "
                "of its own.");
    TORCH_CHECK(amp::detail::fits(grad, params[i]), "LARC: parameter ", i, " of its group, of shape ", params[i].sizes(),
                " on ", params[i].device(), ", has a gradient of shape ", grad.sizes(), " on ", grad.device(),
                ". Drop it with zero_grad(true), and run backward again.");
    TORCH_CHECK(params[i].is_non_overlapping_and_dense(), "LARC: parameter ", i, " of its group, of shape ", params[i].sizes(),
                ", has strides ", params[i].strides(),
                ", which leave gaps or repeat elements. Make it contiguous: param.set_data(param.detach().contiguous()).");
    for (const auto dtype : {params[i].scalar_type(), grad.scalar_type()}) {
      TORCH_CHECK(amp::detail::is_amp_float(dtype), "LARC: parameter ", i, " of its group, of shape ", params[i].sizes(),
                  ", has dtype ", dtype, "; expected float32, float16 or bfloat16.");
    }
    TORCH_CHECK_VALUE(!unscales || grad.scalar_type() != at::kHalf, "LARC: the gradient of parameter ", i,
                      " of its group, of shape ", params[i].sizes(),
                      ", is float16, which cannot hold what the step would unscale. Keep the parameters in float32 and cast in "
                      "amp::autocast, or let amp::initialize(model, optimizer, \"O2\") keep float32 masters.");
  }
}

// The tensors of one kernel call, all on one device.
struct Lists {
  std::vector<at::Tensor> grads, params;
};

std::map<c10::Device, Lists, bool (*)(c10::Device, c10::Device)> lists_by_device(const std::vector<at::Tensor>& params) {
  const auto before = [](c10::Device a, c10::Device b) {
    return std::make_pair(a.type(), a.index()) < std::make_pair(b.type(), b.index());
  };
  std::map<c10::Device, Lists, bool (*)(c10::Device, c10::Device)> lists(before);
  for (const at::Tensor& param : params) {
    at::Tensor& grad = param.mutable_grad();
    if (!grad.defined()) continue;
    grad = amp::detail::in_layout_of(grad, param);
    auto& list = lists[param.device()];
    list.grads.push_back(grad);
    list.params.push_back(param);
  }
  return lists;
}

void adapt_group(const std::vector<at::Tensor>& params, const LARCOptions& options, const LarcRates& rates) {
  kernels::LarcSettings settings;
  settings.lr = rates.lr;
  settings.weight_decay = rates.weight_decay;
  settings.trust_coefficient = options.trust_coefficient();
  settings.clip = options.clip();
  settings.eps = options.eps();
  kernels::StepTensors tensors;
  for (const auto& [device, lists] : lists_by_device(params)) {
    if (rates.grad_scale.defined()) tensors.grad_scale = kernels::moved_to(device, rates.grad_scale.reciprocal().reshape({1}));
    if (rates.found_inf.defined())
      tensors.found_inf = kernels::moved_to(device, rates.found_inf.ne(0).to(at::kInt).reshape({1}));
    kernels::multi_tensor_larc(lists.grads, lists.params, settings, tensors);
  }
}

}  // namespace

LARCOptions checked(LARCOptions options, const torch::optim::Optimizer& optimizer) {
  TORCH_CHECK_VALUE(std::isfinite(options.trust_coefficient()) && options.trust_coefficient() > 0,
                    "LARC: trust_coefficient must be positive, got ", options.trust_coefficient(), ".");
  TORCH_CHECK_VALUE(std::isfinite(options.eps()) && options.eps() >= 0, "LARC: eps must not be negative, got ", options.eps(),
                    ".");
  amp::detail::check_one_group_each(optimizer.param_groups());
  return options;
}

void throw_moved_from() {
  C10_THROW_ERROR(Error,
                  "LARC::step() was called on an optimizer that was moved from. Call it on the object that it was moved into: "
                  "after amp::initialize, on the returned handle.");
}

void throw_closure() {
  C10_THROW_ERROR(
      Error,
      "LARC::step() takes no closure: it would see the gradients only after they were adapted. Compute the loss and "
      "its gradients before, and call step().");
}

void drop_gradients(const ParamGroups& groups) {
  for (const auto& group : groups) {
    for (const at::Tensor& param : group.params()) amp::detail::clear_grad(param, /*set_to_none=*/true);
  }
}

void adapt_gradients(const ParamGroups& groups, const LARCOptions& options, const std::vector<LarcRates>& rates) {
  for (size_t i = 0; i < groups.size(); ++i) check_gradients(groups[i].params(), rates[i].grad_scale.defined());
  const at::NoGradGuard no_grad;
  amp::detail::separate_grads_of_groups(groups);
  for (size_t i = 0; i < groups.size(); ++i) adapt_group(groups[i].params(), options, rates[i]);
}

}  // namespace apex::parallel::detail
