#include <apex_cpp/normalization/functional.h>

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <apex_cpp/amp/autocast.h>
#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/normalization/detail/norm_autograd.h>

namespace apex::normalization {
namespace {

using kernels::NormKind;

struct Arguments {
  at::Tensor input, weight, bias;

  template <class Cast>
  void cast(const Cast& cast) {
    for (at::Tensor* tensor : {&input, &weight, &bias}) *tensor = cast(*tensor);
  }
};

// NORM-06. Returns false if torch's autocast is off for the device.
bool cast_by_torch(Arguments& arguments) {
  if (!arguments.input.defined()) return false;
  const auto device_type = arguments.input.device().type();
  if (!at::autocast::is_autocast_available(device_type) || !amp::is_autocast_enabled(device_type)) return false;
  const auto dtype = amp::get_autocast_dtype(device_type);
  arguments.cast([&](const at::Tensor& tensor) { return amp::detail::cast_eligible(tensor, device_type, dtype); });
  return true;
}

// Casts the arguments as the levels cast those of torch::layer_norm: to float32 at O1 and O4, to the type of a 16-bit weight at
// O2.
void cast_by_level(Arguments& arguments) {
  static const auto& slot = amp::detail::operator_slot("aten::layer_norm", "");
  amp::detail::cast_as(slot, {&arguments.input, &arguments.weight, &arguments.bias});
}

struct Settings {
  NormKind kind;
  at::IntArrayRef normalized_shape;
  double eps;
  bool memory_efficient;
};

at::Tensor checked(const char* op, const Settings& settings, const Arguments& arguments) {
  const auto& [input, weight, bias] = arguments;
  const auto shape = detail::check_arguments(op, input, weight, bias, settings.normalized_shape, settings.eps);
  // Turns off torch's autocast and the levels' casts for the operators inside the function.
  const c10::impl::ExcludeDispatchKeyGuard off(amp::detail::kOffInside);
  return detail::normalize({settings.kind, shape, settings.eps, settings.memory_efficient}, input, weight, bias);
}

at::Tensor fused(const char* op, const Settings& settings, Arguments arguments) {
  if (!cast_by_torch(arguments)) cast_by_level(arguments);
  if (arguments.input.defined() && arguments.weight.defined()) detail::check_same_dtype(op, arguments.input, arguments.weight);
  return checked(op, settings, arguments);
}

at::Tensor mixed(const char* op, const Settings& settings, Arguments arguments) {
  cast_by_torch(arguments);
  if (arguments.input.defined()) detail::check_mixed_dtypes(op, arguments.input, arguments.weight);
  return checked(op, settings, arguments);
}

void check_defined(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), op, ": ", name, " is an undefined tensor.");
}

}  // namespace

at::Tensor fused_layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, double eps, bool memory_efficient) {
  return fused("fused_layer_norm", {NormKind::layer, normalized_shape, eps, memory_efficient}, {input, {}, {}});
}

at::Tensor fused_layer_norm_affine(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                   at::IntArrayRef normalized_shape, double eps, bool memory_efficient) {
  const char* const op = "fused_layer_norm_affine";
  check_defined(op, "weight", weight);
  check_defined(op, "bias", bias);
  return fused(op, {NormKind::layer, normalized_shape, eps, memory_efficient}, {input, weight, bias});
}

at::Tensor mixed_dtype_fused_layer_norm_affine(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                               at::IntArrayRef normalized_shape, double eps, bool memory_efficient) {
  const char* const op = "mixed_dtype_fused_layer_norm_affine";
  check_defined(op, "weight", weight);
  check_defined(op, "bias", bias);
  return mixed(op, {NormKind::layer, normalized_shape, eps, memory_efficient}, {input, weight, bias});
}

at::Tensor fused_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, double eps, bool memory_efficient) {
  return fused("fused_rms_norm", {NormKind::rms, normalized_shape, eps, memory_efficient}, {input, {}, {}});
}

at::Tensor fused_rms_norm_affine(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef normalized_shape,
                                 double eps, bool memory_efficient) {
  check_defined("fused_rms_norm_affine", "weight", weight);
  return fused("fused_rms_norm_affine", {NormKind::rms, normalized_shape, eps, memory_efficient}, {input, weight, {}});
}

at::Tensor mixed_dtype_fused_rms_norm_affine(const at::Tensor& input, const at::Tensor& weight,
                                             at::IntArrayRef normalized_shape, double eps, bool memory_efficient) {
  check_defined("mixed_dtype_fused_rms_norm_affine", "weight", weight);
  return mixed("mixed_dtype_fused_rms_norm_affine", {NormKind::rms, normalized_shape, eps, memory_efficient},
               {input, weight, {}});
}

at::Tensor manual_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, const at::Tensor& weight, double eps) {
  detail::check_arguments("manual_rms_norm", input, weight, {}, normalized_shape, eps);
  std::vector<int64_t> dims;
  for (size_t i = 0; i < normalized_shape.size(); ++i) dims.push_back(-1 - static_cast<int64_t>(i));
  const auto wide = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor mean_square = input.to(wide).square().mean(dims, /*keepdim=*/true);
  const at::Tensor x_hat = input.mul(mean_square.add(eps).rsqrt());
  if (!weight.defined()) return x_hat;
  const bool low = amp::detail::is_low_precision(weight.scalar_type());
  return (low ? x_hat.to(weight.scalar_type()) : x_hat).mul(weight);
}

}  // namespace apex::normalization
