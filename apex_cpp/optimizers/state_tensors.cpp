#include <apex_cpp/optimizers/state_tensors.h>

#include <ATen/ops/zeros_like.h>

#include <apex_cpp/amp/tensors/grad_kernels.h>

namespace apex::optimizers::detail {

using amp::detail::in_layout_of;

const at::Tensor& kept_like(const at::Tensor& param, at::Tensor& kept, at::ScalarType dtype) {
  return kept = kept.defined() ? in_layout_of(kept, param) : at::zeros_like(param, dtype);
}

const at::Tensor& master_like(const at::Tensor& param, at::Tensor& master) {
  if (!master.defined()) master = param.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  return master = in_layout_of(master, param);
}

at::Tensor loaded_like(const at::Tensor& param, const at::Tensor& loaded, at::ScalarType dtype, const std::string& name,
                       const std::string& key) {
  TORCH_CHECK(loaded.sizes() == param.sizes(), name, " has a saved '", key, "' of shape ", loaded.sizes(),
              ". Load it into an optimizer over the same parameters in the same order.");
  return in_layout_of(loaded.to(param.device(), dtype), param);
}

}  // namespace apex::optimizers::detail
