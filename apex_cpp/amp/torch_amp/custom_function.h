#pragma once

#include <ATen/core/Tensor.h>

#include <type_traits>
#include <utility>

#include <apex_cpp/amp/tensors/map_tensors.h>
#include <apex_cpp/amp/torch_amp/autocast.h>

namespace torch::autograd {
struct AutogradContext;
}

namespace apex::amp {

namespace detail {

/// Keeps in `ctx` what casts the backward is to run with.
void save_autocast(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type, bool enabled);
/// A guard with what was kept. Errors: RuntimeError if nothing was.
autocast saved_autocast(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type);
/// In `dtype`, if it is a floating tensor of the device type, float64 excepted.
at::Tensor cast_eligible(const at::Tensor& tensor, DeviceTypeArg device_type, c10::ScalarType dtype);

template <class F, class... Inputs>
using CustomFwdResult = std::decay_t<std::invoke_result_t<F&, const Inputs&...>>;

}  // namespace detail

/// The body of the `forward` of a `torch::autograd::Function`, for use within `autocast`: keeps in `ctx` whether casts were on,
/// for `custom_bwd`, and calls `forward(inputs...)` under the casts around it. Python: `torch.amp.custom_fwd`.
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
  detail::save_autocast(ctx, device_type, is_autocast_enabled(device_type));
  return forward(inputs...);
}

/// The same for a `forward` written for one dtype: where casts are on, it gets the floating tensors of the device type (float64
/// excepted) among `inputs`, in containers too, in `cast_inputs`, and runs, as its backward does, without casts. Where casts
/// are off, inputs are passed as they are.
template <class F, class... Inputs>
detail::CustomFwdResult<F, Inputs...> custom_fwd(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type,
                                                 c10::ScalarType cast_inputs, F&& forward, const Inputs&... inputs) {
  detail::save_autocast(ctx, device_type, false);
  if (!is_autocast_enabled(device_type)) return forward(inputs...);
  const autocast off(device_type, std::nullopt, /*enabled=*/false);
  const auto cast = [&](const at::Tensor& tensor) { return detail::cast_eligible(tensor, device_type, cast_inputs); };
  return forward(detail::map_tensors(inputs, cast)...);
}

/// The body of the `backward` that belongs to a `custom_fwd`: calls `backward()` with the casts that were on in the forward,
/// whatever is on around the call of backward. Errors: RuntimeError if the forward did not use `custom_fwd` for this device
/// type. Python: `torch.amp.custom_bwd`.
template <class F>
std::decay_t<std::invoke_result_t<F&>> custom_bwd(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type,
                                                  F&& backward) {
  const autocast as_in_forward = detail::saved_autocast(ctx, device_type);
  return backward();
}

}  // namespace apex::amp
