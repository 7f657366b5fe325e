// Arithmetic and comparisons: functions, methods, C++ operators, and in place.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "tests/oracle/tables/o1_casts_calls.h"

namespace oracle {
namespace {

using at::Tensor;
using Tensors = CastCall::Tensors;

constexpr double kNumber = 1.7;
constexpr const char* kTensorForm = "tensor, tensor";
constexpr const char* kNumberForm = "tensor, number";

const std::vector<CastInput> kTwoAlike{{{3, 4}}, {{3, 4}, false, true}};
const std::vector<CastInput> kThree{{{3, 4}}, {{3, 4}}, {{3, 4}}};

struct Binary {
  const char* name;
  Tensor (*function)(const Tensor&, const Tensor&);
  Tensor (Tensor::*method)(const Tensor&) const;
  Tensor& (Tensor::*in_place)(const Tensor&) const;
};

const Binary kComparisons[] = {{"eq", at::eq, &Tensor::eq, &Tensor::eq_}, {"ne", at::ne, &Tensor::ne, &Tensor::ne_},
                               {"lt", at::lt, &Tensor::lt, &Tensor::lt_}, {"le", at::le, &Tensor::le, &Tensor::le_},
                               {"gt", at::gt, &Tensor::gt, &Tensor::gt_}, {"ge", at::ge, &Tensor::ge, &Tensor::ge_}};

struct Operator {
  const char* name;
  CastRun run;
};

const Operator kComparisonOperators[] = {
    {"__eq__", [](Tensors& x) { return x[0] == x[1]; }}, {"__ne__", [](Tensors& x) { return x[0] != x[1]; }},
    {"__lt__", [](Tensors& x) { return x[0] < x[1]; }},  {"__le__", [](Tensors& x) { return x[0] <= x[1]; }},
    {"__gt__", [](Tensors& x) { return x[0] > x[1]; }},  {"__ge__", [](Tensors& x) { return x[0] >= x[1]; }}};

// The reflected ones are what Python calls for `x[1] + x[0]` where the left side is no tensor, or one that declines.
const Operator kTensorOperators[] = {
    {"__add__", [](Tensors& x) { return x[0] + x[1]; }},     {"__radd__", [](Tensors& x) { return x[1] + x[0]; }},
    {"__sub__", [](Tensors& x) { return x[0] - x[1]; }},     {"__rsub__", [](Tensors& x) { return x[1] - x[0]; }},
    {"__mul__", [](Tensors& x) { return x[0] * x[1]; }},     {"__rmul__", [](Tensors& x) { return x[1] * x[0]; }},
    {"__div__", [](Tensors& x) { return x[0] / x[1]; }},     {"__rdiv__", [](Tensors& x) { return x[1] / x[0]; }},
    {"__truediv__", [](Tensors& x) { return x[0] / x[1]; }}, {"__rtruediv__", [](Tensors& x) { return x[1] / x[0]; }}};

const Operator kNumberOperators[] = {
    {"__add__", [](Tensors& x) { return x[0] + kNumber; }},     {"__radd__", [](Tensors& x) { return kNumber + x[0]; }},
    {"__sub__", [](Tensors& x) { return x[0] - kNumber; }},     {"__rsub__", [](Tensors& x) { return kNumber - x[0]; }},
    {"__mul__", [](Tensors& x) { return x[0] * kNumber; }},     {"__rmul__", [](Tensors& x) { return kNumber * x[0]; }},
    {"__div__", [](Tensors& x) { return x[0] / kNumber; }},     {"__rdiv__", [](Tensors& x) { return kNumber / x[0]; }},
    {"__truediv__", [](Tensors& x) { return x[0] / kNumber; }}, {"__rtruediv__", [](Tensors& x) { return kNumber / x[0]; }}};

const Operator kAugmentedOperators[] = {{"__iadd__", [](Tensors& x) { return x[0] += x[1]; }},
                                        {"__isub__", [](Tensors& x) { return x[0] -= x[1]; }},
                                        {"__imul__", [](Tensors& x) { return x[0] *= x[1]; }},
                                        {"__idiv__", [](Tensors& x) { return x[0] /= x[1]; }},
                                        {"__itruediv__", [](Tensors& x) { return x[0] /= x[1]; }}};

const Operator kAugmentedByNumber[] = {{"__iadd__", [](Tensors& x) { return x[0] += kNumber; }},
                                       {"__isub__", [](Tensors& x) { return x[0] -= kNumber; }},
                                       {"__imul__", [](Tensors& x) { return x[0] *= kNumber; }},
                                       {"__idiv__", [](Tensors& x) { return x[0] /= kNumber; }},
                                       {"__itruediv__", [](Tensors& x) { return x[0] /= kNumber; }}};

void add_named_arithmetic(CastCalls& calls) {
  add_both(
      calls, "add", kTwo, [](Tensors& x) { return at::add(x[0], x[1]); }, [](Tensors& x) { return x[0].add(x[1]); },
      kTensorForm);
  add_both(
      calls, "add", kOne, [](Tensors& x) { return at::add(x[0], kNumber); }, [](Tensors& x) { return x[0].add(kNumber); },
      kNumberForm);
  add_both(
      calls, "mul", kTwo, [](Tensors& x) { return at::mul(x[0], x[1]); }, [](Tensors& x) { return x[0].mul(x[1]); },
      kTensorForm);
  add_both(
      calls, "mul", kOne, [](Tensors& x) { return at::mul(x[0], kNumber); }, [](Tensors& x) { return x[0].mul(kNumber); },
      kNumberForm);
  add_both(
      calls, "div", kTwo, [](Tensors& x) { return at::div(x[0], x[1]); }, [](Tensors& x) { return x[0].div(x[1]); },
      kTensorForm);
  add_both(
      calls, "div", kOne, [](Tensors& x) { return at::div(x[0], kNumber); }, [](Tensors& x) { return x[0].div(kNumber); },
      kNumberForm);
}

void add_named_in_place(CastCalls& calls) {
  calls["Tensor.add_ (tensor, tensor)"] = {kTwo, [](Tensors& x) { return x[0].add_(x[1]); }, false};
  calls["Tensor.add_ (tensor, number)"] = {kOne, [](Tensors& x) { return x[0].add_(kNumber); }, false};
  calls["Tensor.mul_ (tensor, tensor)"] = {kTwo, [](Tensors& x) { return x[0].mul_(x[1]); }, false};
  calls["Tensor.mul_ (tensor, number)"] = {kOne, [](Tensors& x) { return x[0].mul_(kNumber); }, false};
  calls["Tensor.div_ (tensor, tensor)"] = {kTwo, [](Tensors& x) { return x[0].div_(x[1]); }, false};
  calls["Tensor.div_ (tensor, number)"] = {kOne, [](Tensors& x) { return x[0].div_(kNumber); }, false};
  calls["Tensor.atan2_"] = {kTwo, [](Tensors& x) { return x[0].atan2_(x[1]); }, false};
  calls["Tensor.addcdiv_"] = {kThree, [](Tensors& x) { return x[0].addcdiv_(x[1], x[2]); }, false};
  calls["Tensor.addcmul_"] = {kThree, [](Tensors& x) { return x[0].addcmul_(x[1], x[2]); }, false};
}

void add_ternary(CastCalls& calls) {
  add_both(
      calls, "addcdiv", kThree, [](Tensors& x) { return at::addcdiv(x[0], x[1], x[2]); },
      [](Tensors& x) { return x[0].addcdiv(x[1], x[2]); });
  add_both(
      calls, "addcmul", kThree, [](Tensors& x) { return at::addcmul(x[0], x[1], x[2]); },
      [](Tensors& x) { return x[0].addcmul(x[1], x[2]); });
  add_both(
      calls, "atan2", kTwo, [](Tensors& x) { return at::atan2(x[0], x[1]); }, [](Tensors& x) { return x[0].atan2(x[1]); });
}

void add_comparisons(CastCalls& calls) {
  for (const Binary& op : kComparisons) {
    const std::string name = op.name;
    calls["torch." + name] = {kTwoAlike, [op](Tensors& x) { return op.function(x[0], x[1]); }, false};
    calls["Tensor." + name] = {kTwoAlike, [op](Tensors& x) { return (x[0].*op.method)(x[1]); }, false};
    calls["Tensor." + name + "_"] = {kTwoAlike, [op](Tensors& x) { return (x[0].*op.in_place)(x[1]); }, false};
  }
  for (const Operator& op : kComparisonOperators) calls[std::string("Tensor.") + op.name] = {kTwoAlike, op.run, false};
  calls["torch.equal"] = {kTwoAlike, [](Tensors& x) { return at::scalar_tensor(at::equal(x[0], x[1]), at::kBool); }, false};
  calls["Tensor.equal"] = {kTwoAlike, [](Tensors& x) { return at::scalar_tensor(x[0].equal(x[1]), at::kBool); }, false};
}

}  // namespace

void add_arithmetic_calls(CastCalls& calls) {
  add_named_arithmetic(calls);
  add_named_in_place(calls);
  add_ternary(calls);
  add_comparisons(calls);
  for (const Operator& op : kTensorOperators) calls[cast_call_name("Tensor", op.name, kTensorForm)] = {kTwo, op.run};
  for (const Operator& op : kNumberOperators) calls[cast_call_name("Tensor", op.name, kNumberForm)] = {kOne, op.run};
  for (const Operator& op : kAugmentedOperators) calls[cast_call_name("Tensor", op.name, kTensorForm)] = {kTwo, op.run, false};
  for (const Operator& op : kAugmentedByNumber) calls[cast_call_name("Tensor", op.name, kNumberForm)] = {kOne, op.run, false};
}

}  // namespace oracle
