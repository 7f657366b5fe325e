#include <apex_cpp/normalization/functional.h>

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>

#include <apex_cpp/amp/autocast.h>
#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/convert_network.h>

#include "kernels/normalization/normalization.h"

namespace apex::normalization {
namespace {

using kernels::NormKind;

void check_parameter(const char* op, const char* name, const at::Tensor& parameter, const at::Tensor& input,
                     at::IntArrayRef normalized_shape) {
  TORCH_CHECK(parameter.sizes() == normalized_shape, op, ": ", name, " has shape ", parameter.sizes(),
              ", but normalized_shape is ", normalized_shape, ".");
  TORCH_CHECK(parameter.device() == input.device(), op, ": ", name, " is on ", parameter.device(), " and the input on ",
              input.device(), ". Move one of them with to(device).");
}

kernels::NormShape shape_of(const char* op, const at::Tensor& input, at::IntArrayRef normalized_shape) {
  TORCH_CHECK(!normalized_shape.empty(), op, ": normalized_shape is empty: name at least one dimension to normalize over.");
  const int64_t rest = input.dim() - static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK(rest >= 0 && input.sizes().slice(static_cast<size_t>(rest)) == normalized_shape, op, ": the input has shape ",
              input.sizes(), ", whose last dimensions are not normalized_shape ", normalized_shape, ".");
  const auto batch = input.sizes().slice(0, static_cast<size_t>(rest));
  return {c10::multiply_integers(batch), c10::multiply_integers(normalized_shape)};
}

// Rows and size of `input` for `normalized_shape`. `op` is the name of the function, for messages. `weight` and `bias` may be
// undefined. Errors: RuntimeError for a shape, dtype or device that does not fit, ValueError for a negative eps.
kernels::NormShape check_arguments(const char* op, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                                   at::IntArrayRef normalized_shape, double eps) {
  TORCH_CHECK(input.defined(), op, ": the input is an undefined tensor.");
  TORCH_CHECK(amp::detail::is_real_float(input.scalar_type()), op, ": the input is ", input.scalar_type(),
              ". Convert it to float16, bfloat16, float32 or float64 first.");
  TORCH_CHECK_VALUE(eps >= 0, op, ": eps is ", eps, "; it must not be negative.");
  const kernels::NormShape shape = shape_of(op, input, normalized_shape);
  if (weight.defined()) check_parameter(op, "weight", weight, input, normalized_shape);
  if (!bias.defined()) return shape;
  check_parameter(op, "bias", bias, input, normalized_shape);
  TORCH_CHECK(bias.scalar_type() == weight.scalar_type(), op, ": weight is ", weight.scalar_type(), " and bias is ",
              bias.scalar_type(), ". Convert one of them.");
  return shape;
}

void check_same_dtype(const char* op, const at::Tensor& input, const at::Tensor& weight) {
  TORCH_CHECK(weight.scalar_type() == input.scalar_type(), op, ": the input is ", input.scalar_type(), " and weight is ",
              weight.scalar_type(), ". Convert one of them, or use mixed_dtype_", op,
              " (the Mixed modules), whose output has the dtype of weight.");
}

void check_mixed_dtypes(const char* op, const at::Tensor& input, const at::Tensor& weight) {
  TORCH_CHECK(amp::detail::is_real_float(weight.scalar_type()), op, ": weight is ", weight.scalar_type(),
              ". Convert it to float16, bfloat16 or float32 first.");
  const bool same = weight.scalar_type() == input.scalar_type();
  TORCH_CHECK(same || (weight.scalar_type() != at::kDouble && input.scalar_type() != at::kDouble), op, ": the input is ",
              input.scalar_type(), " and weight is ", weight.scalar_type(),
              ": float64 cannot be combined with another dtype. Convert one of them.");
}

// The parameters of a normalisation, after checks and casts.
struct NormCall {
  NormKind kind;
  kernels::NormShape shape;
  double eps;
  bool memory_efficient;
};

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Saves the call for the backward pass.
void save_call(AutogradContext* ctx, const NormCall& call) {
  ctx->saved_data["kind"] = static_cast<int64_t>(call.kind);
  ctx->saved_data["rows"] = call.shape.rows;
  ctx->saved_data["size"] = call.shape.size;
  ctx->saved_data["eps"] = call.eps;
  ctx->saved_data["memory_efficient"] = call.memory_efficient;
}

NormCall saved_call(AutogradContext* ctx) {
  const auto value = [&](const char* name) -> const c10::IValue& { return ctx->saved_data.at(name); };
  return {static_cast<NormKind>(value("kind").toInt()),
          {value("rows").toInt(), value("size").toInt()},
          value("eps").toDouble(),
          value("memory_efficient").toBool()};
}

// An autograd function takes a tensor that may be undefined as an optional.
using Optional = std::optional<at::Tensor>;
Optional optional(const at::Tensor& tensor) { return tensor.defined() ? Optional(tensor) : std::nullopt; }

// The backward pass is an autograd function of its own, so that differentiating it is an error and not a wrong result. Returns
// only the gradients that are needed.
struct NormBackward : torch::autograd::Function<NormBackward> {
  static variable_list forward(AutogradContext*, const at::Tensor& grad_output, const at::Tensor& input_or_output,
                               const Optional& weight, const Optional& bias, const std::array<at::Tensor, 2>& statistics,
                               const NormCall& call, at::ScalarType input_dtype, const std::array<bool, 3>& needs) {
    const double eps = weight ? call.eps : 0;  // without a weight there is nothing to keep away from 0
    const kernels::NormSaved saved{input_or_output, statistics[0], statistics[1], call.memory_efficient, eps};
    const kernels::NormAffine affine{weight.value_or(at::Tensor()), bias.value_or(at::Tensor())};
    const auto grads =
        kernels::norm_backward(call.kind, call.shape, grad_output.contiguous(), saved, affine, input_dtype, needs);
    variable_list needed;
    for (const at::Tensor& grad : {grads.input, grads.weight, grads.bias}) {
      if (grad.defined()) needed.push_back(grad);
    }
    return needed;
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    C10_THROW_ERROR(NotImplementedError,
                    "apex::normalization: the fused backward pass cannot be differentiated. For second derivatives use "
                    "torch::layer_norm or apex::normalization::manual_rms_norm.");
  }
};

struct Norm : torch::autograd::Function<Norm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const Optional& weight, const Optional& bias,
                            const NormCall& call) {
    const at::Tensor x = input.contiguous();
    const auto contiguous = [](const Optional& tensor) { return tensor ? tensor->contiguous() : at::Tensor(); };
    const kernels::NormAffine affine{contiguous(weight), contiguous(bias)};
    const auto result = kernels::norm_forward(call.kind, call.shape, x, affine, call.eps);
    save_call(ctx, call);
    ctx->saved_data["input_dtype"] = static_cast<int64_t>(input.scalar_type());
    if (call.memory_efficient) {
      ctx->save_for_backward({result.output, affine.weight, affine.bias, at::Tensor(), result.inv_std});
    } else {
      ctx->save_for_backward({x, affine.weight, affine.bias, result.mean, result.inv_std});
    }
    return result.output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NormCall call = saved_call(ctx);
    const auto saved = ctx->get_saved_variables();
    const auto input_dtype = static_cast<at::ScalarType>(ctx->saved_data.at("input_dtype").toInt());
    // Autograd numbers only the tensors that it was given. There is no bias without a weight, so the weight is number 1 and the
    // bias number 2.
    const std::array<bool, 3> needs{ctx->needs_input_grad(0), saved[1].defined() && ctx->needs_input_grad(1),
                                    saved[2].defined() && ctx->needs_input_grad(2)};
    const auto needed = NormBackward::apply(grads[0], saved[0], optional(saved[1]), optional(saved[2]),
                                            std::array<at::Tensor, 2>{saved[3], saved[4]}, call, input_dtype, needs);
    variable_list result(4);
    for (size_t i = 0, next = 0; i < needs.size(); ++i) {
      if (needs[i]) result[i] = needed[next++];
    }
    return result;
  }
};

// Computes the output and records the call for autograd. `weight` and `bias` may be undefined.
at::Tensor normalize(const NormCall& call, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return Norm::apply(input, optional(weight), optional(bias), call);
}

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
  const auto shape = check_arguments(op, input, weight, bias, settings.normalized_shape, settings.eps);
  // Turns off torch's autocast and the levels' casts for the operators inside the function.
  const c10::impl::ExcludeDispatchKeyGuard off(amp::detail::kOffInside);
  return normalize({settings.kind, shape, settings.eps, settings.memory_efficient}, input, weight, bias);
}

at::Tensor fused(const char* op, const Settings& settings, Arguments arguments) {
  if (!cast_by_torch(arguments)) cast_by_level(arguments);
  if (arguments.input.defined() && arguments.weight.defined()) check_same_dtype(op, arguments.input, arguments.weight);
  return checked(op, settings, arguments);
}

at::Tensor mixed(const char* op, const Settings& settings, Arguments arguments) {
  cast_by_torch(arguments);
  if (arguments.input.defined()) check_mixed_dtypes(op, arguments.input, arguments.weight);
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
  check_arguments("manual_rms_norm", input, weight, {}, normalized_shape, eps);
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
