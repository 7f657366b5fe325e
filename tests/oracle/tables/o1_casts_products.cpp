// Matrix products and other multiplications, as functions and methods, and in place.
#include <ATen/Functions.h>

#include "tests/oracle/tables/o1_casts_calls.h"

namespace oracle {
namespace {

using at::Tensor;
using Tensors = CastCall::Tensors;

struct Product {
  const char* name;
  std::vector<CastInput> inputs;
  CastRun function;
  CastRun method;
};

const Product kProducts[] = {
    {"addbmm",
     {{{3, 5}}, {{2, 3, 4}}, {{2, 4, 5}}},
     [](Tensors& x) { return at::addbmm(x[0], x[1], x[2]); },
     [](Tensors& x) { return x[0].addbmm(x[1], x[2]); }},
    {"addmm",
     {{{3, 5}}, {{3, 4}}, {{4, 5}}},
     [](Tensors& x) { return at::addmm(x[0], x[1], x[2]); },
     [](Tensors& x) { return x[0].addmm(x[1], x[2]); }},
    {"addmv",
     {{{3}}, {{3, 4}}, {{4}}},
     [](Tensors& x) { return at::addmv(x[0], x[1], x[2]); },
     [](Tensors& x) { return x[0].addmv(x[1], x[2]); }},
    {"addr",
     {{{3, 4}}, {{3}}, {{4}}},
     [](Tensors& x) { return at::addr(x[0], x[1], x[2]); },
     [](Tensors& x) { return x[0].addr(x[1], x[2]); }},
    {"baddbmm",
     {{{2, 3, 5}}, {{2, 3, 4}}, {{2, 4, 5}}},
     [](Tensors& x) { return at::baddbmm(x[0], x[1], x[2]); },
     [](Tensors& x) { return x[0].baddbmm(x[1], x[2]); }},
    {"bmm",
     {{{2, 3, 4}}, {{2, 4, 5}}},
     [](Tensors& x) { return at::bmm(x[0], x[1]); },
     [](Tensors& x) { return x[0].bmm(x[1]); }},
    {"cross",
     {{{4, 3}}, {{4, 3}}},
     [](Tensors& x) { return at::cross(x[0], x[1], 1); },
     [](Tensors& x) { return x[0].cross(x[1], 1); }},
    {"dot", {{{6}}, {{6}}}, [](Tensors& x) { return at::dot(x[0], x[1]); }, [](Tensors& x) { return x[0].dot(x[1]); }},
    {"matmul",
     {{{2, 3, 4}}, {{4, 5}}},
     [](Tensors& x) { return at::matmul(x[0], x[1]); },
     [](Tensors& x) { return x[0].matmul(x[1]); }},
    {"mm", {{{3, 4}}, {{4, 5}}}, [](Tensors& x) { return at::mm(x[0], x[1]); }, [](Tensors& x) { return x[0].mm(x[1]); }},
    {"mv", {{{3, 4}}, {{4}}}, [](Tensors& x) { return at::mv(x[0], x[1]); }, [](Tensors& x) { return x[0].mv(x[1]); }},
    {"prelu",
     {{{2, 3, 4}, true}, {{3}}},
     [](Tensors& x) { return at::prelu(x[0], x[1]); },
     [](Tensors& x) { return x[0].prelu(x[1]); }}};

struct InPlace {
  const char* name;
  const char* like;  // whose inputs it takes
  CastRun run;
};

const InPlace kInPlace[] = {
    {"addbmm_", "addbmm", [](Tensors& x) { return x[0].addbmm_(x[1], x[2]); }},
    {"addmm_", "addmm", [](Tensors& x) { return x[0].addmm_(x[1], x[2]); }},
    {"addmv_", "addmv", [](Tensors& x) { return x[0].addmv_(x[1], x[2]); }},
    {"addr_", "addr", [](Tensors& x) { return x[0].addr_(x[1], x[2]); }},
    {"baddbmm_", "baddbmm", [](Tensors& x) { return x[0].baddbmm_(x[1], x[2]); }},
};

}  // namespace

void add_product_calls(CastCalls& calls) {
  for (const Product& op : kProducts) add_both(calls, op.name, op.inputs, op.function, op.method);
  for (const InPlace& op : kInPlace) {
    const auto& inputs = calls.at(std::string("Tensor.") + op.like).inputs;
    calls[std::string("Tensor.") + op.name] = {inputs, op.run, false};
  }
  calls["Tensor.__matmul__"] = calls.at("Tensor.matmul");
}

}  // namespace oracle
