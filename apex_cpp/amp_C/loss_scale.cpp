#include <apex_cpp/amp_C/detail/arguments.h>
#include <apex_cpp/amp_C/loss_scale.h>

#include "kernels/optimizers.h"

using namespace apex;
using amp_C::detail::check_one_element;

at::Tensor update_scale_hysteresis_cuda(at::Tensor current_scale, at::Tensor growth_tracker, at::Tensor hysteresis_tracker,
                                        at::Tensor found_inf, const double growth_factor, const double backoff_factor,
                                        const int64_t growth_interval, const int hysteresis) {
  const char* const op = "update_scale_hysteresis_cuda";
  TORCH_CHECK(current_scale.defined(), op, ": current_scale is undefined.");
  const c10::Device device = current_scale.device();
  check_one_element(op, "current_scale", current_scale, at::kFloat, device);
  check_one_element(op, "growth_tracker", growth_tracker, at::kInt, device);
  check_one_element(op, "hysteresis_tracker", hysteresis_tracker, at::kInt, device);
  check_one_element(op, "found_inf", found_inf, at::kFloat, device);
  kernels::ScaleUpdateControl control;
  control.growth_factor = growth_factor;
  control.backoff_factor = backoff_factor;
  control.growth_interval = growth_interval;
  control.hysteresis = hysteresis;
  kernels::update_scale_hysteresis({current_scale, growth_tracker, hysteresis_tracker}, found_inf.detach().gt(0).to(at::kInt),
                                   control);
  return current_scale;
}
