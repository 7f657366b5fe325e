#pragma once

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/map_tensors.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace apex::amp {

/// A device type as an argument: `at::kCUDA`, or its name as Python writes it, "cuda".
/// Errors: RuntimeError for a name that is no device type, an index ("cuda:0") among it.
class DeviceTypeArg {
 public:
  /* implicit */ DeviceTypeArg(c10::DeviceType type) : type_(type) {}
  /* implicit */ DeviceTypeArg(const std::string& name);
  /* implicit */ DeviceTypeArg(const char* name) : DeviceTypeArg(std::string(name)) {}

  /* implicit */ operator c10::DeviceType() const { return type_; }
  /// "cuda", "cpu", …
  std::string name() const;

 private:
  c10::DeviceType type_;
};

/// A block in which torch casts operations by its own lists: a guard over `at::autocast`. Python: `torch.amp.autocast`.
///
/// ```
/// at::Tensor loss;
/// {
///   amp::autocast guard("cuda");
///   loss = criterion(net->forward(x), y);
/// }
/// scaler.scale(loss).backward();
/// ```
/// It holds for the thread that made it and one device type; put it around forward and loss, and let `backward` stand outside.
/// Guards nest. The end of the outermost one drops torch's cache of cast weights; so do both ends of one whose dtype differs
/// from the block around it, since the cache would answer with the other dtype. The cache is shared by all threads: where two
/// of them run the same weights at different dtypes at once, one needs `cache_enabled` false. A weight that is changed inside
/// the block is seen by the next block only. No synchronisation.
///
/// LibTorch has no 16-bit `torch::nn::LSTM` for FP32 input on a CPU without AVX512: a NotImplementedError that says so. Give it
/// BF16 input (`x.to(torch::kBFloat16)`), or take level O4 or O5, whose LSTM works there.
class autocast {
 public:
  /// `device_type`: by default CUDA, as `torch.cuda.amp.autocast` has it. `dtype`: what the 16-bit operations run in; by
  /// default the enclosing block's, else torch's (half on CUDA, bfloat16 on a CPU). `enabled` false is a block without casts.
  /// `cache_enabled`: whether each weight is cast once; by default as around it. A warning, and a block without casts: for
  /// "cuda" where there is no GPU, and on other devices for a dtype that is not bfloat16 or half. Errors: RuntimeError for a
  /// device type that torch has no cast lists for.
  explicit autocast(DeviceTypeArg device_type = c10::kCUDA, std::optional<c10::ScalarType> dtype = std::nullopt,
                    bool enabled = true, std::optional<bool> cache_enabled = std::nullopt);
  autocast(const autocast&) = delete;
  autocast& operator=(const autocast&) = delete;
  ~autocast();

 private:
  struct State {
    bool enabled;
    c10::ScalarType dtype;
    bool cache_enabled;
  };
  static State current(c10::DeviceType device_type);
  void enter(const State& state) const;

  c10::DeviceType device_type_;
  State before_;
  bool changes_dtype_;
};

/// Whether casts are on for this device type in this thread. Python: `torch.is_autocast_enabled`.
bool is_autocast_enabled(DeviceTypeArg device_type);
/// The 16-bit type of this device type's casts in this thread. Python: `torch.get_autocast_dtype`.
c10::ScalarType get_autocast_dtype(DeviceTypeArg device_type);

}  // namespace apex::amp

namespace apex::amp::detail {

/// On a CPU for which oneDNN has no 16-bit LSTM (one without AVX512): from now on `torch::nn::LSTM` with FP32 input under
/// torch's CPU autocast is an error that names the remedy, in place of LibTorch's of a failed primitive. Elsewhere nothing.
/// What the check does not refuse runs as before. Done once; thread-safe.
void check_lstm_under_autocast();

}  // namespace apex::amp::detail

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
