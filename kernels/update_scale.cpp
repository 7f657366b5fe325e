#include <ATen/core/grad_mode.h>

#include "kernels/cuda/driver.h"
#include "kernels/optimizer_rules.h"
#include "kernels/plan/tensor_lists.h"
#include "kernels/update.h"

namespace apex::kernels {
namespace {

constexpr const char* kOp = "update_scale_hysteresis";

void check_element(const char* name, const at::Tensor& tensor, at::ScalarType dtype) {
  TORCH_CHECK(tensor.defined() && tensor.scalar_type() == dtype && tensor.numel() == 1, kOp, ": ", name,
              " must be a tensor of one ", dtype, ".");
}

void check_device(const char* name, const at::Tensor& tensor, c10::Device device) {
  TORCH_CHECK(tensor.device() == device, kOp, ": ", name, " is on ", tensor.device(), " and scale on ", device,
              ". Move them to one device.");
}

void update_on_cpu(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdateControl& control) {
  const rules::LossScale before = {tensors.scale.item<float>(), tensors.growth_tracker.item<int32_t>(),
                                   tensors.hysteresis_tracker.item<int32_t>()};
  const rules::LossScale after = scale_update_rule(control)(before, found_inf.item<int>() != 0);
  tensors.scale.fill_(after.scale);
  tensors.growth_tracker.fill_(after.growth);
  tensors.hysteresis_tracker.fill_(after.hysteresis);
}

}  // namespace

void update_scale_hysteresis(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdateControl& control) {
  const at::NoGradGuard no_grad;
  check_element("scale", tensors.scale, at::kFloat);
  check_element("growth_tracker", tensors.growth_tracker, at::kInt);
  check_element("hysteresis_tracker", tensors.hysteresis_tracker, at::kInt);
  plan::check_found_inf(kOp, found_inf);
  const c10::Device device = tensors.scale.device();
  TORCH_CHECK_NOT_IMPLEMENTED(device.is_cpu() || cuda::handles(device), kOp, " is not implemented for tensors on ", device,
                              ": move them to the CPU.");
  check_device("growth_tracker", tensors.growth_tracker, device);
  check_device("hysteresis_tracker", tensors.hysteresis_tracker, device);
  check_device("found_inf", found_inf, device);
  if (!cuda::handles(device)) return update_on_cpu(tensors, found_inf, control);
  cuda::update_scale(tensors, found_inf, control);
  bump_versions({tensors.scale, tensors.growth_tracker, tensors.hysteresis_tracker});
}

}  // namespace apex::kernels
