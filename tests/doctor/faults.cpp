#include "tests/doctor/faults.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace apex::test {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Step = Tensor (*)(const Tensor&);

// ---- what is done to a tensor, in its own type ----

Tensor same(const Tensor& x) { return x.clone(); }
Tensor by_large_numbers(const Tensor& x) { return (x * 1e6) * 1e-6; }

// Next to 2048 a float16 has steps of 2, a bfloat16 of 16.
Tensor next_to_2048(const Tensor& x) { return (x + 2048.0) - 2048.0; }
Tensor next_to_2048_times_largest(const Tensor& x) {
  const Tensor largest = x.abs().max() + 1e-3;
  return next_to_2048(x / largest) * largest;
}

// The first element divided and multiplied by a number that is 0 in float16, where it becomes 0 / 0.
Tensor first_by_small_number(const Tensor& x) {
  Tensor factors = x.new_ones({x.numel()});
  const Tensor small = x.new_full({}, 1e-10);
  factors[0] = small / small;
  return x * factors.view(x.sizes());
}

template <int exponent>
Tensor times_power_of_ten(const Tensor& x) {
  return x * std::pow(10.0, exponent);
}

// ---- as autograd functions ----

template <class Function, Step forward_step, Step backward_step>
struct Planted : torch::autograd::Function<Function> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return forward_step(x.detach()); }
  static variable_list backward(AutogradContext*, const variable_list& grads) { return {backward_step(grads[0])}; }
};

struct Overflows : Planted<Overflows, by_large_numbers, same> {};
struct LosesPrecision : Planted<LosesPrecision, next_to_2048, same> {};
struct MakesNan : Planted<MakesNan, first_by_small_number, same> {};
struct GradUnderflows : Planted<GradUnderflows, same, times_power_of_ten<-12>> {};
struct GradGrows : Planted<GradGrows, same, times_power_of_ten<12>> {};
struct GradOverflows : Planted<GradOverflows, same, times_power_of_ten<12>> {};
struct GradShrinks : Planted<GradShrinks, same, times_power_of_ten<-12>> {};
struct GradLosesPrecision : Planted<GradLosesPrecision, same, next_to_2048_times_largest> {};
struct GradMakesNan : Planted<GradMakesNan, same, first_by_small_number> {};

template <class Function>
Tensor apply(const Tensor& x) {
  return Function::apply(x);
}

// ---- as operators ----

TORCH_LIBRARY(planted, library) {
  library.def("overflows(Tensor x) -> Tensor", apply<Overflows>);
  library.def("loses_precision(Tensor x) -> Tensor", apply<LosesPrecision>);
  library.def("makes_nan(Tensor x) -> Tensor", apply<MakesNan>);
  library.def("grad_underflows(Tensor x) -> Tensor", apply<GradUnderflows>);
  library.def("grad_grows(Tensor x) -> Tensor", apply<GradGrows>);
  library.def("grad_overflows(Tensor x) -> Tensor", apply<GradOverflows>);
  library.def("grad_shrinks(Tensor x) -> Tensor", apply<GradShrinks>);
  library.def("grad_loses_precision(Tensor x) -> Tensor", apply<GradLosesPrecision>);
  library.def("grad_makes_nan(Tensor x) -> Tensor", apply<GradMakesNan>);
}

namespace {

using Plant = std::function<Tensor(const Tensor&)>;

Plant operator_named(const std::string& name) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").typed<Tensor(const Tensor&)>();
  return [op](const Tensor& x) { return op.call(x); };
}

// What the first does to the gradient the second has to undo: it comes first in the forward pass.
Plant after(const Plant& second, const Plant& first) {
  return [=](const Tensor& x) { return first(second(x)); };
}

std::vector<Fault> all_faults() {
  return {
      {"overflow", false, true, "planted::overflows", operator_named("planted::overflows")},
      {"precision", false, false, "planted::loses_precision", operator_named("planted::loses_precision")},
      {"nan", false, true, "planted::makes_nan", operator_named("planted::makes_nan")},
      {"overflow_of_a_function", false, true, "apex::test::Overflows", apply<Overflows>},
      {"precision_of_a_function", false, false, "apex::test::LosesPrecision", apply<LosesPrecision>},
      {"nan_of_a_function", false, true, "apex::test::MakesNan", apply<MakesNan>},
      {"overflow_of_aten", false, true, "aten::mul.Scalar", [](const Tensor& x) { return (x * 1e6).div(1e6); }},
      {"grad_underflow", true, true, "planted::grad_underflows",
       after(operator_named("planted::grad_grows"), operator_named("planted::grad_underflows"))},
      {"grad_overflow", true, true, "planted::grad_overflows",
       after(operator_named("planted::grad_shrinks"), operator_named("planted::grad_overflows"))},
      {"grad_precision", true, false, "planted::grad_loses_precision", operator_named("planted::grad_loses_precision")},
      {"grad_nan", true, true, "planted::grad_makes_nan", operator_named("planted::grad_makes_nan")},
      {"grad_underflow_of_a_function", true, true, "apex::test::GradUnderflows",
       after(apply<GradGrows>, apply<GradUnderflows>)},
      {"grad_overflow_of_a_function", true, true, "apex::test::GradOverflows", after(apply<GradShrinks>, apply<GradOverflows>)},
      {"grad_precision_of_a_function", true, false, "apex::test::GradLosesPrecision", apply<GradLosesPrecision>},
      {"grad_nan_of_a_function", true, true, "apex::test::GradMakesNan", apply<GradMakesNan>},
  };
}

}  // namespace

const std::vector<Fault>& faults() {
  static const auto instance = all_faults();
  return instance;
}

}  // namespace apex::test
