#pragma once

#include "kernels/multi_tensor.h"
#include "kernels/optimizers.h"
#include "kernels/plan/reuse.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

// The driver for CUDA tensors: one launch per pass over all tensors of a device, whatever their number, sizes, alignment and
// dtypes, on the device's current stream. Never waits for the device, and can be captured in a CUDA graph, which reads all
// tensors of a control anew whenever it runs. Updates and norms have the bits of the CPU driver, but for the payloads of NaN.
// In a library built without CUDA it handles no device, and nothing else of it may be called.
namespace apex::kernels::cuda {

bool handles(c10::Device device);

// The part of a call that is on one CUDA device.
struct Call {
  const plan::Groups& plan;
  c10::Device device;
};

// A found_inf on another device is raised there, for which the host waits if it is on the CPU.
void scale(const Call& call, const at::Tensor& found_inf, double factor);
void unscale(const Call& call, const at::Tensor& found_inf, const at::Tensor& inv_scale);
void check_finite(const Call& call, const at::Tensor& found_inf);
void axpby(const Call& call, const at::Tensor& found_inf, double a, double b, CheckArg check);
void copy(const Call& call);

// Norms as kernels/multi_tensor.h has them, of a call that is all on this device. An undefined `inv_scale` is 1.
std::tuple<at::Tensor, at::Tensor> l2norm(const Call& call, const at::Tensor& found_inf, const at::Tensor& inv_scale,
                                          bool per_tensor);
std::tuple<at::Tensor, at::Tensor> maxnorm(const Call& call, const at::Tensor& found_inf, bool per_tensor);

// Of any call: sums of squares, or largest magnitudes, as float64 by index, 0 for tensors elsewhere.
at::Tensor sums_of_squares(const Call& call, const at::Tensor& inv_scale);
at::Tensor max_magnitudes(const Call& call);

// Optimizer updates. Each takes the lists of its namesake in kernels/optimizers.h in their order, and model_params behind them
// where there are any. Tensors of the control are on the call's device; found_inf counts only if it is.
void sgd(const Call& call, const SgdControl& control);
void adam(const Call& call, const AdamControl& control);
void adagrad(const Call& call, const AdagradControl& control);
// In two launches.
void novograd(const Call& call, const NovoGradControl& control, const at::Tensor& grad_norms);
void lamb_stage_1(const Call& call, const LambControl& control, const LambNorms& norms);
void lamb_stage_2(const Call& call, const LambControl& control, const LambNorms& norms);
// In two launches.
void larc(const Call& call, const LarcControl& control);

// All tensors are on one CUDA device.
void update_scale(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdateControl& control);

// The parts of a call that this driver handles: one for each device.
inline std::vector<Call> calls_of(const plan::Groups& plan) {
  std::vector<Call> calls;
  for (const plan::Group& group : *plan) {
    const bool known = std::any_of(calls.begin(), calls.end(), [&](const Call& call) { return call.device == group.device; });
    if (handles(group.device) && !known) calls.push_back({plan, group.device});
  }
  return calls;
}

// The call, if all of its tensors are on the device and this driver handles it.
inline std::optional<Call> whole_call(const plan::Groups& plan, c10::Device device) {
  const bool all = std::all_of(plan->begin(), plan->end(), [&](const plan::Group& group) { return group.device == device; });
  if (plan->size() == 0 || !all || !handles(device)) return std::nullopt;
  return Call{plan, device};
}

}  // namespace apex::kernels::cuda
