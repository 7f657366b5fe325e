// Pointwise functions and reductions, each as a function and as a method, and in place.
#include <ATen/Functions.h>

#include "tests/oracle/tables/o1_casts_calls.h"

namespace oracle {
namespace {

using at::Tensor;
using Tensors = CastCall::Tensors;

struct Unary {
  const char* name;
  Tensor (*function)(const Tensor&);
  Tensor (Tensor::*method)() const;
};

const Unary kUnary[] = {{"acos", at::acos, &Tensor::acos},
                        {"asin", at::asin, &Tensor::asin},
                        {"cosh", at::cosh, &Tensor::cosh},
                        {"erfinv", at::erfinv, &Tensor::erfinv},
                        {"exp", at::exp, &Tensor::exp},
                        {"expm1", at::expm1, &Tensor::expm1},
                        {"log", at::log, &Tensor::log},
                        {"log10", at::log10, &Tensor::log10},
                        {"log2", at::log2, &Tensor::log2},
                        {"rsqrt", at::rsqrt, &Tensor::rsqrt},
                        {"reciprocal", at::reciprocal, &Tensor::reciprocal},
                        {"sinh", at::sinh, &Tensor::sinh},
                        {"tan", at::tan, &Tensor::tan}};

struct UnaryInPlace {
  const char* name;
  Tensor& (*function)(Tensor&);
  Tensor& (Tensor::*method)() const;
};

const UnaryInPlace kUnaryInPlace[] = {{"acos_", at::acos_, &Tensor::acos_},
                                      {"asin_", at::asin_, &Tensor::asin_},
                                      {"cosh_", at::cosh_, &Tensor::cosh_},
                                      {"exp_", at::exp_, &Tensor::exp_},
                                      {"expm1_", at::expm1_, &Tensor::expm1_},
                                      {"log_", at::log_, &Tensor::log_},
                                      {"log10_", at::log10_, &Tensor::log10_},
                                      {"log2_", at::log2_, &Tensor::log2_},
                                      {"reciprocal_", at::reciprocal_, &Tensor::reciprocal_},
                                      {"rsqrt_", at::rsqrt_, &Tensor::rsqrt_},
                                      {"sinh_", at::sinh_, &Tensor::sinh_},
                                      {"tan_", at::tan_, &Tensor::tan_}};

void add_reductions(CastCalls& calls) {
  add_both(
      calls, "cumprod", kOne, [](Tensors& x) { return at::cumprod(x[0], 1); }, [](Tensors& x) { return x[0].cumprod(1); });
  add_both(
      calls, "cumsum", kOne, [](Tensors& x) { return at::cumsum(x[0], 1); }, [](Tensors& x) { return x[0].cumsum(1); });
  add_both(
      calls, "dist", kTwo, [](Tensors& x) { return at::dist(x[0], x[1]); }, [](Tensors& x) { return x[0].dist(x[1]); });
  add_both(
      calls, "norm", kOne, [](Tensors& x) { return at::norm(x[0]); }, [](Tensors& x) { return x[0].norm(); });
  add_both(
      calls, "prod", kOne, [](Tensors& x) { return at::prod(x[0]); }, [](Tensors& x) { return x[0].prod(); });
  add_both(
      calls, "renorm", kOne, [](Tensors& x) { return at::renorm(x[0], 2, 0, 0.5); },
      [](Tensors& x) { return x[0].renorm(2, 0, 0.5); });
  add_both(
      calls, "std", kOne, [](Tensors& x) { return at::std(x[0]); }, [](Tensors& x) { return x[0].std(); });
  add_both(
      calls, "sum", kOne, [](Tensors& x) { return at::sum(x[0]); }, [](Tensors& x) { return x[0].sum(); });
  add_both(
      calls, "var", kOne, [](Tensors& x) { return at::var(x[0]); }, [](Tensors& x) { return x[0].var(); });
}

void add_powers(CastCalls& calls) {
  add_both(
      calls, "pow", kOne, [](Tensors& x) { return at::pow(x[0], 3); }, [](Tensors& x) { return x[0].pow(3); },
      "tensor, number");
  add_both(
      calls, "pow", kTwo, [](Tensors& x) { return at::pow(x[0], x[1]); }, [](Tensors& x) { return x[0].pow(x[1]); },
      "tensor, tensor");
  calls["Tensor.__pow__ (tensor, number)"] = calls.at("Tensor.pow (tensor, number)");
  calls["Tensor.__pow__ (tensor, tensor)"] = calls.at("Tensor.pow (tensor, tensor)");
  calls["Tensor.__rpow__"] = {kOne, [](Tensors& x) { return at::pow(2, x[0]); }};
  calls["Tensor.pow_ (tensor, number)"] = {kOne, [](Tensors& x) { return x[0].pow_(3); }, false};
  // O1-31
  calls["Tensor.pow_ (tensor, tensor)"] = {kTwo, [](Tensors& x) { return x[0].pow_(x[1]); }, false};
}

void add_methods_in_place(CastCalls& calls) {
  calls["Tensor.cumprod_"] = {kOne, [](Tensors& x) { return x[0].cumprod_(1); }, false};
  calls["Tensor.cumsum_"] = {kOne, [](Tensors& x) { return x[0].cumsum_(1); }, false};
  calls["Tensor.erfinv_"] = {kOne, [](Tensors& x) { return x[0].erfinv_(); }, false};
  calls["Tensor.renorm_"] = {kOne, [](Tensors& x) { return x[0].renorm_(2, 0, 0.5); }, false};
}

}  // namespace

void add_pointwise_calls(CastCalls& calls) {
  for (const Unary& op : kUnary) {
    add_both(
        calls, op.name, kOne, [op](Tensors& x) { return op.function(x[0]); }, [op](Tensors& x) { return (x[0].*op.method)(); });
  }
  for (const UnaryInPlace& op : kUnaryInPlace) {
    const std::string name = op.name;
    calls["torch." + name] = {kOne, [op](Tensors& x) { return op.function(x[0]); }, false};
    calls["Tensor." + name] = {kOne, [op](Tensors& x) { return (x[0].*op.method)(); }, false};
  }
  add_reductions(calls);
  add_powers(calls);
  add_methods_in_place(calls);
}

}  // namespace oracle
