#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <type_traits>
#include <utility>

#include <apex_cpp/amp/casts/disable_casts.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/map_tensors.h>
#include <apex_cpp/amp/torch_amp/autocast.h>

namespace torch::autograd {
struct AutogradContext;
}

namespace apex::amp {

namespace detail {

/// Keeps in `ctx` what casts the backward is to run with, torch's and amp's: those around the call, or none.
void keep_casts(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type, bool those_around);
/// The casts that were kept, for its lifetime. Errors: RuntimeError if nothing was.
class KeptCasts {
 public:
  KeptCasts(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type);

 private:
  autocast torch_casts_;
  std::optional<CastsAs> amp_casts_;
  std::optional<disable_casts> no_casts_;
};

/// Whether operators on this thread are cast by the lists of O1 or O4.
bool are_listed_casts_on();
/// In `dtype`, if it is a floating tensor of the device type (of any, if there is none), float64 excepted.
at::Tensor cast_eligible(const at::Tensor& tensor, std::optional<DeviceTypeArg> device_type, c10::ScalarType dtype);

template <class F, class... Inputs>
using CustomFwdResult = std::decay_t<std::invoke_result_t<F&, const Inputs&...>>;

}  // namespace detail

/// The body of the `forward` of a `torch::autograd::Function`, for use within `autocast` and at O1 and O4: keeps in `ctx` which
/// casts were on, torch's for the device type and amp's, which hold for every device, for `custom_bwd`, and calls
/// `forward(inputs...)` under the casts around it. Python: `torch.amp.custom_fwd`.
///
/// ```
/// static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
///   return amp::custom_fwd(ctx, "cuda", [&](auto& x, auto& y) { ctx->save_for_backward({x, y}); return x.mm(y); }, a, b);
/// }
/// static variable_list backward(AutogradContext* ctx, variable_list grads) {
///   return amp::custom_bwd(ctx, "cuda", [&] { … });
/// }
/// ```
/// The answer is a value. No synchronisation.
template <class F, class... Inputs>
detail::CustomFwdResult<F, Inputs...> custom_fwd(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type, F&& forward,
                                                 const Inputs&... inputs) {
  detail::keep_casts(ctx, device_type, /*those_around=*/true);
  return forward(inputs...);
}

/// The same for a `forward` written for one dtype: where casts are on, it gets the floating tensors of the device type (float64
/// excepted) among `inputs`, in containers too, in `cast_inputs`, and runs, as its backward does, without casts. At O1 and O4,
/// whose casts hold for every device, these are the floating tensors of any device. Where casts are off, inputs are passed as
/// they are.
template <class F, class... Inputs>
detail::CustomFwdResult<F, Inputs...> custom_fwd(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type,
                                                 c10::ScalarType cast_inputs, F&& forward, const Inputs&... inputs) {
  detail::keep_casts(ctx, device_type, /*those_around=*/false);
  const bool everywhere = detail::are_listed_casts_on();
  if (!everywhere && !is_autocast_enabled(device_type)) return forward(inputs...);
  const autocast off(device_type, std::nullopt, /*enabled=*/false);
  const disable_casts amp_off;
  const std::optional<DeviceTypeArg> of_device = everywhere ? std::nullopt : std::optional<DeviceTypeArg>(device_type);
  const auto cast = [&](const at::Tensor& tensor) { return detail::cast_eligible(tensor, of_device, cast_inputs); };
  return forward(detail::map_tensors(inputs, cast)...);
}

/// The body of the `backward` that belongs to a `custom_fwd`: calls `backward()` with the casts that were on in the forward,
/// whatever is on around the call of backward. Errors: RuntimeError if the forward did not use `custom_fwd` for this device
/// type. Python: `torch.amp.custom_bwd`.
template <class F>
std::decay_t<std::invoke_result_t<F&>> custom_bwd(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type,
                                                  F&& backward) {
  const detail::KeptCasts as_in_forward(ctx, device_type);
  return backward();
}

}  // namespace apex::amp
