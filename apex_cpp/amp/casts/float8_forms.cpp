#include <apex_cpp/amp/casts/float8_forms.h>

#include <apex_cpp/amp/casts/thread_casts.h>

#include <iostream>
#include <set>
#include <string>

namespace apex::amp::detail {
namespace {

bool is_dense_bfloat16(const at::Tensor& tensor) {
  return !tensor.is_nested() && tensor.scalar_type() == at::kBFloat16 && tensor.layout() == at::kStrided &&
         (tensor.is_cpu() || tensor.is_cuda());
}

// Prints the casts and tells the trace.
void tell(const CastRules& rules) {
  if (rules.prints_casts()) std::cout << "BFloat16->Float8_e4m3fn (product)" << std::endl;
  if (auto* const recorder = thread_casts().recorder) recorder->add_cast(at::kBFloat16, at::kFloat8_e4m3fn, false);
}

// What LibTorch would refuse is left to LibTorch, and so are sizes that FP8 hardware refuses: K and N of [M, K] x [K, N] must
// be multiples of 16.
bool fits(const at::Tensor& a, int64_t summed_over_in_b, int64_t columns_of_b) {
  return a.size(-1) == summed_over_in_b && a.size(-1) % kFloat8Multiple == 0 && columns_of_b % kFloat8Multiple == 0;
}

// Two factors, which have already been cast, as the rules see them. A parameter of the models is a weight.
class Factors {
 public:
  Factors(const CastRules& rules, const at::Tensor& a, const at::Tensor& b)
      : rules_(rules), a_(a), b_(b), name_of_a_(rules.find_name(a)), name_of_b_(rules.find_name(b)) {}

  // Whether the rules round these factors: dense bfloat16 of one device, and of none of `bfloat16_modules`.
  bool are_taken() const {
    return is_dense_bfloat16(a_) && is_dense_bfloat16(b_) && a_.device() == b_.device() && !is_kept(a_, name_of_a_) &&
           !is_kept(b_, name_of_b_);
  }
  // Whether they have `dims` dimensions, and the same number of matrices.
  bool are_matrices(int64_t dims) const {
    return a_.dim() == dims && b_.dim() == dims && (dims == 2 || a_.size(0) == b_.size(0)) &&
           fits(a_, b_.size(-2), b_.size(-1));
  }

  Float8Factor a() const { return {a_, role_of(name_of_a_)}; }
  Float8Factor b() const { return {b_, role_of(name_of_b_)}; }
  // Of two weights neither has a history with the other.
  Float8Rounding rounding() const {
    return rules_.float8(name_of_a_ && name_of_b_ ? nullptr : name_of_a_ ? name_of_a_ : name_of_b_);
  }

 private:
  bool is_kept(const at::Tensor& factor, const std::string* name) const {
    if (!name) name = rules_.find_clone(factor);
    return name && rules_.keeps_bfloat16(*name);
  }
  static Float8Role role_of(const std::string* name) { return name ? Float8Role::weight : Float8Role::activation; }

  const CastRules& rules_;
  const at::Tensor &a_, &b_;
  const std::string *name_of_a_, *name_of_b_;
};

bool takes_added(const at::Tensor& added) { return !added.defined() || is_dense_bfloat16(added); }

at::Tensor sum_of(const CastRules& rules, const Float8Sum& sum, const at::Tensor& a, const at::Tensor& b, int64_t dims) {
  const Factors factors(rules, a, b);
  if (!factors.are_taken() || !takes_added(sum.added) || !factors.are_matrices(dims)) return {};
  tell(rules);
  return float8_product(sum, factors.a(), factors.b(), factors.rounding());
}

}  // namespace

at::Tensor Float8Form<at::_ops::linear>::call(const CastRules& rules, const at::Tensor& input, const at::Tensor& weight,
                                              const std::optional<at::Tensor>& bias) {
  const at::Tensor added = bias.value_or(at::Tensor());
  const Factors factors(rules, input, weight);
  if (!factors.are_taken() || !takes_added(added)) return {};
  const bool has_sizes = input.dim() >= 1 && weight.dim() == 2 && (!added.defined() || added.dim() == 1);
  if (!has_sizes || !fits(input, weight.size(1), weight.size(0))) return {};
  tell(rules);
  return float8_linear(factors.a(), factors.b(), added, factors.rounding());
}

at::Tensor Float8Form<at::_ops::matmul>::call(const CastRules& rules, const at::Tensor& a, const at::Tensor& b) {
  const Factors factors(rules, a, b);
  if (!factors.are_taken() || a.dim() < 2 || b.dim() < 2 || !fits(a, b.size(-2), b.size(-1))) return {};
  tell(rules);
  return float8_matmul(factors.a(), factors.b(), factors.rounding());
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

// The numbers of channels take the place of K and N. What LibTorch would refuse is left to LibTorch.
Float8Convolution::Float8Convolution(const CastRules& rules, const at::Tensor& input, const at::Tensor& weight) {
  if (!rules.rounds_convolutions()) return;
  const Factors factors(rules, input, weight);
  const bool has_sizes = weight.dim() >= 3 && (input.dim() == weight.dim() || input.dim() == weight.dim() - 1);
  if (!factors.are_taken() || !has_sizes) return;
  if (weight.size(0) % kFloat8Multiple != 0 || weight.size(1) % kFloat8Multiple != 0) return;
  tell(rules);
  is_taken = true;
  rounding = factors.rounding();
  operands = float8_operands(factors.a(), factors.b(), rounding);
}

namespace {

template <class... Ops>
std::set<std::string> op_names(Float8Ops<Ops...>) {
  return {Ops::name...};
}

}  // namespace

std::set<std::string> CastRules::float8_operators() const {
  if (!rounds_to_float8()) return {};
  auto names = op_names(Float8Products());
  if (rounds_convolutions()) names.merge(op_names(Float8Convolutions()));
  return names;
}

}  // namespace apex::amp::detail
