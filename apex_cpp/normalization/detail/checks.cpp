#include <apex_cpp/normalization/detail/checks.h>

#include <apex_cpp/amp/tensors/low_precision.h>

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

namespace apex::normalization::detail {
namespace {

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

}  // namespace

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
              input.scalar_type(), " and weight is ", weight.scalar_type(), ": float64 does not mix. Convert one of them.");
}

}  // namespace apex::normalization::detail
