#include <apex_cpp/fused_dense.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>

#include <apex_cpp/amp/casts.h>

#include <cmath>

namespace apex::fused_dense {
namespace {

void check_sizes(const char* name, at::IntArrayRef sizes) {
  for (const int64_t size : sizes) {
    TORCH_CHECK_VALUE(size > 0, name, ": the numbers of features are ", sizes, ". Each must be positive.");
  }
}

void check_input(const char* name, const at::Tensor& input, int64_t in_features) {
  TORCH_CHECK(input.dim() > 0 && input.size(-1) == in_features, name, ": the input has shape ", input.sizes(),
              ", whose last dimension is not in_features, ", in_features, ".");
}

// Initializes as torch::nn::Linear does.
void draw(at::Tensor& weight, at::Tensor& bias) {
  const at::NoGradGuard no_grad;
  const double bound = 1 / std::sqrt(static_cast<double>(weight.size(1)));
  weight.uniform_(-bound, bound);
  if (bias.defined()) bias.uniform_(-bound, bound);
}

// In the type of its input, as Apex's: amp would cast it to FP32, which gives the same bits and keeps an FP32 copy for
// backward.
at::Tensor tanh_gelu(const at::Tensor& x) {
  const amp::disable_casts casts_off;
  return at::gelu(x, "tanh");
}

at::Tensor dense_gelu_dense(const at::Tensor& x, const at::Tensor& weight1, const at::Tensor& bias1, const at::Tensor& weight2,
                            const at::Tensor& bias2) {
  return at::linear(tanh_gelu(at::linear(x, weight1, bias1)), weight2, bias2);
}

}  // namespace

FusedDenseImpl::FusedDenseImpl(int64_t in_features_, int64_t out_features_, bool bias_)
    : in_features(in_features_), out_features(out_features_), has_bias_(bias_) {
  check_sizes("FusedDense", {in_features, out_features});
  reset();
}

void FusedDenseImpl::reset() {
  weight = register_parameter("weight", at::empty({out_features, in_features}));
  bias = register_parameter("bias", has_bias_ ? at::empty({out_features}) : at::Tensor(), /*requires_grad=*/has_bias_);
  reset_parameters();
}

void FusedDenseImpl::reset_parameters() { draw(weight, bias); }

void FusedDenseImpl::pretty_print(std::ostream& stream) const {
  stream << "apex::fused_dense::FusedDense(in_features=" << in_features << ", out_features=" << out_features
         << ", bias=" << std::boolalpha << has_bias_ << ")";
}

at::Tensor FusedDenseImpl::forward(const at::Tensor& input) {
  check_input("FusedDense", input, in_features);
  const auto dense = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) { return at::linear(x, w, b); };
  return amp::half_function(dense)(input, weight, bias);
}

FusedDenseGeluDenseImpl::FusedDenseGeluDenseImpl(int64_t in_features_, int64_t intermediate_features_, int64_t out_features_,
                                                 bool bias_)
    : in_features(in_features_), intermediate_features(intermediate_features_), out_features(out_features_) {
  TORCH_CHECK_VALUE(bias_,
                    "FusedDenseGeluDense: bias=false is not supported. Use two FusedDense(in, out, false) and torch::gelu.");
  check_sizes("FusedDenseGeluDense", {in_features, intermediate_features, out_features});
  reset();
}

void FusedDenseGeluDenseImpl::reset() {
  weight1 = register_parameter("weight1", at::empty({intermediate_features, in_features}));
  bias1 = register_parameter("bias1", at::empty({intermediate_features}));
  weight2 = register_parameter("weight2", at::empty({out_features, intermediate_features}));
  bias2 = register_parameter("bias2", at::empty({out_features}));
  reset_parameters();
}

void FusedDenseGeluDenseImpl::reset_parameters() {
  draw(weight1, bias1);
  draw(weight2, bias2);
}

void FusedDenseGeluDenseImpl::pretty_print(std::ostream& stream) const {
  stream << "apex::fused_dense::FusedDenseGeluDense(in_features=" << in_features
         << ", intermediate_features=" << intermediate_features << ", out_features=" << out_features << ")";
}

at::Tensor FusedDenseGeluDenseImpl::forward(const at::Tensor& input) {
  check_input("FusedDenseGeluDense", input, in_features);
  return amp::half_function(dense_gelu_dense)(input, weight1, bias1, weight2, bias2);
}

}  // namespace apex::fused_dense
