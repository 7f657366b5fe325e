#include <apex_cpp/amp/casts/float8_forms.h>

#include <apex_cpp/amp/casts/thread_casts.h>

#include <iostream>

namespace apex::amp::detail {
namespace {

constexpr int64_t kMultiple = 16;  // of K and N, for FP8 matrix products of GPUs

bool is_dense_bfloat16(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 && tensor.layout() == at::kStrided && !tensor.is_nested();
}

// Prints the casts and tells the trace.
void tell(const CastRules& rules) {
  if (rules.prints_casts()) std::cout << "BFloat16->Float8_e4m3fn (product)" << std::endl;
  if (auto* const recorder = thread_casts().recorder) recorder->add_cast(at::kBFloat16, at::kFloat8_e4m3fn, false);
}

// A parameter of the models is a weight.
Float8Factor float8_factor(const CastRules& rules, const at::Tensor& values) {
  return {values, rules.is_parameter(values) ? Float8Role::weight : Float8Role::activation};
}

// Whether the rules round the factors a and b of a product, which have already been cast, and what it is added to, which may be
// undefined: all are dense, of bfloat16, neither factor belongs to one of `bfloat16_modules`, and K and N of [M, K] x [K, N]
// are multiples of 16, as FP8 hardware wants.
bool rounds_to_float8(const CastRules& rules, const at::Tensor& a, const at::Tensor& b, int64_t columns_of_b,
                      const at::Tensor& added = {}) {
  if (!is_dense_bfloat16(a) || !is_dense_bfloat16(b)) return false;
  if (added.defined() && !is_dense_bfloat16(added)) return false;
  if (a.size(-1) % kMultiple != 0 || columns_of_b % kMultiple != 0) return false;
  return !rules.keeps_bfloat16(a) && !rules.keeps_bfloat16(b);
}

}  // namespace

at::Tensor Float8Form<at::_ops::linear>::call(const CastRules& rules, const at::Tensor& input, const at::Tensor& weight,
                                              const std::optional<at::Tensor>& bias) {
  const at::Tensor added = bias.value_or(at::Tensor());
  const bool fits =
      input.dim() >= 1 && weight.dim() == 2 && (!added.defined() || added.dim() == 1) && input.size(-1) == weight.size(1);
  if (!fits || !rounds_to_float8(rules, input, weight, weight.size(0), added)) return {};
  tell(rules);
  return float8_linear(float8_factor(rules, input), float8_factor(rules, weight), added, rules.float8());
}

at::Tensor Float8Form<at::_ops::matmul>::call(const CastRules& rules, const at::Tensor& a, const at::Tensor& b) {
  const bool fits = a.dim() >= 2 && b.dim() >= 2 && a.size(-1) == b.size(-2);
  if (!fits || !rounds_to_float8(rules, a, b, b.size(-1))) return {};
  tell(rules);
  return float8_matmul(float8_factor(rules, a), float8_factor(rules, b), rules.float8());
}

at::Tensor Float8Form<at::_ops::addmm>::call(const CastRules& rules, const at::Tensor& added, const at::Tensor& a,
                                             const at::Tensor& b, const c10::Scalar& beta, const c10::Scalar& alpha) {
  const bool fits = a.dim() >= 2 && a.dim() == b.dim() && a.size(-1) == b.size(-2);
  if (!fits || !rounds_to_float8(rules, a, b, b.size(-1), added)) return {};
  tell(rules);
  return float8_product({added, beta, alpha}, float8_factor(rules, a), float8_factor(rules, b), rules.float8());
}

}  // namespace apex::amp::detail
