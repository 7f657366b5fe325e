#pragma once

#include "kernels/multi_tensor.h"
#include "kernels/optimizers.h"
#include "kernels/plan/reuse.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

// The driver for CUDA tensors: one launch per pass over all tensors of a device, whatever their number, sizes, alignment and
// dtypes, on the device's current stream. Never waits for the device. A CUDA graph can capture the launches. Updates and norms
// have the bits of the CPU driver, except for the payloads of NaN. In a library without CUDA, handles() is always false, and no
// other function may be called.
namespace apex::kernels::cuda {

bool handles(c10::Device device);

// The part of a call that is on one CUDA device.
struct Call {
  const plan::Groups& plan;
  c10::Device device;
};

// found_inf may be on another device. If it is on the CPU, the host waits.
void scale(const Call& call, const at::Tensor& found_inf, double factor);
void unscale(const Call& call, const at::Tensor& found_inf, const at::Tensor& inv_scale);
void check_finite(const Call& call, const at::Tensor& found_inf);
void axpby(const Call& call, const at::Tensor& found_inf, double a, double b, CheckArg check);
void copy(const Call& call);

// The norms of kernels/multi_tensor.h, for a call whose tensors are all on this device. An undefined `inv_scale` counts as 1.
std::tuple<at::Tensor, at::Tensor> l2norm(const Call& call, const at::Tensor& found_inf, const at::Tensor& inv_scale,
                                          bool per_tensor);
std::tuple<at::Tensor, at::Tensor> maxnorm(const Call& call, const at::Tensor& found_inf, bool per_tensor);

// For any call: sums of squares, or largest magnitudes, as float64 by index; 0 for tensors on other devices.
at::Tensor sums_of_squares(const Call& call, const at::Tensor& inv_scale);
at::Tensor max_magnitudes(const Call& call);

// All tensors are on one CUDA device.
void update_scale(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdate& update);

// The parts of a call that this driver handles, one for each device.
inline std::vector<Call> calls_of(const plan::Groups& plan) {
  std::vector<Call> calls;
  for (const plan::Group& group : *plan) {
    const bool known = std::any_of(calls.begin(), calls.end(), [&](const Call& call) { return call.device == group.device; });
    if (handles(group.device) && !known) calls.push_back({plan, group.device});
  }
  return calls;
}

// The whole call, if all of its tensors are on `device` and this driver handles it.
inline std::optional<Call> whole_call(const plan::Groups& plan, c10::Device device) {
  const bool all = std::all_of(plan->begin(), plan->end(), [&](const plan::Group& group) { return group.device == device; });
  if (plan->size() == 0 || !all || !handles(device)) return std::nullopt;
  return Call{plan, device};
}

}  // namespace apex::kernels::cuda
