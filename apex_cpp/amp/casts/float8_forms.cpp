#include <apex_cpp/amp/casts/float8_forms.h>

#include <apex_cpp/amp/casts/thread_casts.h>

#include <iostream>

namespace apex::amp::detail {
namespace {

constexpr int64_t kMultiple = 16;

bool is_dense_bfloat16(const at::Tensor& tensor) {
  return !tensor.is_nested() && tensor.scalar_type() == at::kBFloat16 && tensor.layout() == at::kStrided &&
         (tensor.is_cpu() || tensor.is_cuda());
}

// Prints the casts and tells the trace.
void tell(const CastRules& rules) {
  if (rules.prints_casts()) std::cout << "BFloat16->Float8_e4m3fn (product)" << std::endl;
  if (auto* const recorder = thread_casts().recorder) recorder->add_cast(at::kBFloat16, at::kFloat8_e4m3fn, false);
}

// A parameter of the models is a weight.
Float8Factor float8_factor(const CastRules& rules, const at::Tensor& values) {
  return {values, rules.is_named(values) ? Float8Role::weight : Float8Role::activation};
}

// What LibTorch would refuse is left to LibTorch, and so are sizes that FP8 hardware refuses: K and N of [M, K] x [K, N] must
// be multiples of 16.
bool fits(const at::Tensor& a, int64_t summed_over_in_b, int64_t columns_of_b) {
  return a.size(-1) == summed_over_in_b && a.size(-1) % kMultiple == 0 && columns_of_b % kMultiple == 0;
}

// Whether the rules round these factors, which have already been cast: dense bfloat16 of one device, and of none of
// `bfloat16_modules`.
bool takes(const CastRules& rules, const at::Tensor& a, const at::Tensor& b) {
  return is_dense_bfloat16(a) && is_dense_bfloat16(b) && a.device() == b.device() && !rules.keeps_bfloat16(a) &&
         !rules.keeps_bfloat16(b);
}

// Factors of `dims` dimensions, and of the same number of matrices.
bool are_matrices(const at::Tensor& a, const at::Tensor& b, int64_t dims) {
  return a.dim() == dims && b.dim() == dims && (dims == 2 || a.size(0) == b.size(0)) && fits(a, b.size(-2), b.size(-1));
}

bool takes_added(const at::Tensor& added) { return !added.defined() || is_dense_bfloat16(added); }

at::Tensor sum_of(const CastRules& rules, const Float8Sum& sum, const at::Tensor& a, const at::Tensor& b, int64_t dims) {
  if (!takes(rules, a, b) || !takes_added(sum.added) || !are_matrices(a, b, dims)) return {};
  tell(rules);
  return float8_product(sum, float8_factor(rules, a), float8_factor(rules, b), rules.float8());
}

}  // namespace

at::Tensor Float8Form<at::_ops::linear>::call(const CastRules& rules, const at::Tensor& input, const at::Tensor& weight,
                                              const std::optional<at::Tensor>& bias) {
  const at::Tensor added = bias.value_or(at::Tensor());
  if (!takes(rules, input, weight) || !takes_added(added)) return {};
  const bool has_sizes = input.dim() >= 1 && weight.dim() == 2 && (!added.defined() || added.dim() == 1);
  if (!has_sizes || !fits(input, weight.size(1), weight.size(0))) return {};
  tell(rules);
  return float8_linear(float8_factor(rules, input), float8_factor(rules, weight), added, rules.float8());
}

at::Tensor Float8Form<at::_ops::matmul>::call(const CastRules& rules, const at::Tensor& a, const at::Tensor& b) {
  if (!takes(rules, a, b) || a.dim() < 2 || b.dim() < 2 || !fits(a, b.size(-2), b.size(-1))) return {};
  tell(rules);
  return float8_matmul(float8_factor(rules, a), float8_factor(rules, b), rules.float8());
}

at::Tensor Float8Form<at::_ops::mm>::call(const CastRules& rules, const at::Tensor& a, const at::Tensor& b) {
  return sum_of(rules, {}, a, b, 2);
}

at::Tensor Float8Form<at::_ops::bmm>::call(const CastRules& rules, const at::Tensor& a, const at::Tensor& b) {
  return sum_of(rules, {}, a, b, 3);
}

at::Tensor Float8Form<at::_ops::addmm>::call(const CastRules& rules, const at::Tensor& added, const at::Tensor& a,
                                             const at::Tensor& b, const c10::Scalar& beta, const c10::Scalar& alpha) {
  return sum_of(rules, {added, beta, alpha}, a, b, 2);
}

at::Tensor Float8Form<at::_ops::baddbmm>::call(const CastRules& rules, const at::Tensor& added, const at::Tensor& a,
                                               const at::Tensor& b, const c10::Scalar& beta, const c10::Scalar& alpha) {
  return sum_of(rules, {added, beta, alpha}, a, b, 3);
}

}  // namespace apex::amp::detail
