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

/// A device type as an argument: `at::kCUDA`, or its name in Python, "cuda".
/// Errors: RuntimeError for a text that is not the name of a device type, such as one with an index ("cuda:0").
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

/// A guard over `at::autocast`: while it lives, LibTorch casts operators by its own lists. Python: `torch.amp.autocast`.
///
/// ```
/// at::Tensor loss;
/// {
///   amp::autocast guard("cuda");
///   loss = criterion(net->forward(x), y);
/// }
/// scaler.scale(loss).backward();
/// ```
/// It applies to the thread that created it and to one device type. Put it around forward and loss, and call `backward` outside
/// of it. Guards may nest. The end of the outermost guard drops LibTorch's cache of cast weights. A guard whose dtype differs
/// from that of the enclosing guard drops the cache at both ends, since the cache would return casts of the other dtype. All
/// threads share the cache: if two threads run the same weights at different dtypes at once, one of them needs `cache_enabled`
/// false. A weight that is changed inside a guard takes effect in the next one. No synchronisation.
///
/// On a CPU without AVX512, LibTorch has no 16-bit `torch::nn::LSTM` for FP32 input; the guard makes that a
/// NotImplementedError. Give the LSTM BF16 input (`x.to(torch::kBFloat16)`), or use level O4 or O5, where LSTMs work.
class autocast {
 public:
  /// `device_type`: CUDA by default, as in `torch.cuda.amp.autocast`. `dtype`: the type of 16-bit operators; by default that of
  /// the enclosing guard, else LibTorch's (half on CUDA, bfloat16 on a CPU). `enabled` false: no casts inside. `cache_enabled`:
  /// whether each weight is cast only once; by default as outside. For "cuda" without a GPU, and on other devices for a dtype
  /// other than bfloat16 or half, the guard warns and casts nothing. Errors: RuntimeError for a device type without cast lists
  /// in LibTorch.
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

/// On a CPU for which oneDNN has no 16-bit LSTM (without AVX512): from now on `torch::nn::LSTM` with FP32 input under
/// LibTorch's CPU autocast throws an error that names the remedy; LibTorch's own error would only report a failed primitive.
/// No-op on other CPUs. All other calls run as before. Runs once; thread-safe.
void check_lstm_under_autocast();

}  // namespace apex::amp::detail

namespace torch::autograd {
struct AutogradContext;
}

namespace apex::amp {

namespace detail {

/// Stores in `ctx` the casts for the backward, LibTorch's and amp's: the current casts if `those_around`, else none.
void keep_casts(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type, bool those_around);
/// Applies the stored casts during its lifetime. Errors: RuntimeError if none were stored.
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
/// Casts a floating-point tensor of the device type (of any device without one) to `dtype`, except float64.
at::Tensor cast_eligible(const at::Tensor& tensor, std::optional<DeviceTypeArg> device_type, c10::ScalarType dtype);

template <class F, class... Inputs>
using CustomFwdResult = std::decay_t<std::invoke_result_t<F&, const Inputs&...>>;

}  // namespace detail

/// The body of the `forward` of a `torch::autograd::Function` that is used under `autocast` or at O1 and O4. Stores in `ctx`
/// for `custom_bwd` which casts are on: LibTorch's for the device type, and amp's, which apply to every device. Then calls
/// `forward(inputs...)` with the current casts. Python: `torch.amp.custom_fwd`.
///
/// ```
/// static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
///   return amp::custom_fwd(ctx, "cuda", [&](auto& x, auto& y) { ctx->save_for_backward({x, y}); return x.mm(y); }, a, b);
/// }
/// static variable_list backward(AutogradContext* ctx, variable_list grads) {
///   return amp::custom_bwd(ctx, "cuda", [&] { … });
/// }
/// ```
/// Returns by value. No synchronisation.
template <class F, class... Inputs>
detail::CustomFwdResult<F, Inputs...> custom_fwd(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type, F&& forward,
                                                 const Inputs&... inputs) {
  detail::keep_casts(ctx, device_type, /*those_around=*/true);
  return forward(inputs...);
}

/// For a `forward` that is written for one dtype. While casts are on, the floating-point tensors of the device type among
/// `inputs` (also in containers; float64 excepted) are cast to `cast_inputs`, and forward and backward run without casts. At O1
/// and O4, whose casts apply to every device, tensors of all devices are cast. While casts are off, inputs are passed
/// unchanged.
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
  // `forward` may take `auto&`.
  const auto call = [&](const auto&... each) -> detail::CustomFwdResult<F, Inputs...> { return forward(each...); };
  return call(detail::map_tensors(inputs, cast)...);
}

/// The body of the `backward` for a `custom_fwd`: calls `backward()` with the casts of the forward, whatever casts are on
/// around it. Errors: RuntimeError if the forward did not use `custom_fwd` for this device type. Python:
/// `torch.amp.custom_bwd`.
template <class F>
std::decay_t<std::invoke_result_t<F&>> custom_bwd(torch::autograd::AutogradContext* ctx, DeviceTypeArg device_type,
                                                  F&& backward) {
  const detail::KeptCasts as_in_forward(ctx, device_type);
  return backward();
}

}  // namespace apex::amp
