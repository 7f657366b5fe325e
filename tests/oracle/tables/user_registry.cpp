// The table of user registrations: wrapped callables, and operators registered by name.
#include <ATen/Functions.h>

#include "tests/oracle/features.h"
#include "tests/oracle/reading/case_file.h"
#include "tests/oracle/tables/tables.h"
#include "tests/oracle/verdict/compare.h"
#include "tests/oracle/verdict/o1_session.h"

namespace oracle {
namespace {

namespace amp = apex::amp;
using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensors inputs_of(const Json& row) {
  Tensors inputs;
  for (const Json& name : row.at("inputs").items()) {
    inputs.push_back(at::linspace(0.1, 0.9, 5, at::kFloat).to(input_type(name.as_string())));
  }
  return inputs;
}

// The callable of the table hands its arguments back.
Tensors one(const Tensor& a) { return {a}; }
Tensors two(const Tensor& a, const Tensor& b) { return {a, b}; }

template <class Wrap>
Tensors call_wrapped(Wrap wrap, const Tensors& x) {
  return x.size() == 1 ? wrap(one)(x[0]) : wrap(two)(x.at(0), x.at(1));
}

Tensors call_decorated(const std::string& api, const Tensors& x) {
  if (api == "half_function (decorator)") return call_wrapped([](auto f) { return amp::half_function(f); }, x);
  if (api == "float_function (decorator)") return call_wrapped([](auto f) { return amp::float_function(f); }, x);
  if (api == "promote_function (decorator)") return call_wrapped([](auto f) { return amp::promote_function(f); }, x);
  throw NeedsFeature(api);
}

void register_operator(const std::string& api, const std::string& op) {
  if (api == "register_half_function") return amp::register_half_function(op);
  if (api == "register_float_function") return amp::register_float_function(op);
  if (api == "register_promote_function") return amp::register_promote_function(op);
  throw NeedsFeature(api);
}

struct Unregister {
  std::string op;
  ~Unregister() { amp::unregister_function(op); }
};

Tensor call_operator(const std::string& target, const Tensors& x) {
  if (target == "torch.sigmoid") return at::sigmoid(x.at(0));
  if (target == "torch.maximum") return at::maximum(x.at(0), x.at(1));
  throw NeedsFeature(target);
}

std::vector<std::string> expected_types(const Json& row) {
  const Json* types = row.find("output");
  if (!types) types = &row.at("returns");
  if (types->is_string()) return {types->as_string()};
  std::vector<std::string> names;
  for (const Json& name : types->items()) names.push_back(name.as_string());
  return names;
}

void check_types(const Json& row, const Tensors& got, Report& report) {
  const auto expected = expected_types(row);
  compare_text(report, "number of tensors", std::to_string(got.size()), std::to_string(expected.size()));
  for (size_t i = 0; i < got.size(); ++i) {
    compare_text(report, "tensor " + std::to_string(i), dtype_name(got[i].scalar_type()), expected.at(i));
  }
}

template <class Call>
void check_cases(const Json& entry, Report& report, Call call) {
  require_known(entry, {"api", "target", "when", "cases"}, "a registration");
  for (const Json& row : entry.at("cases").items()) {
    require_known(row, {"inputs", "output", "returns"}, "a row of a registration");
    report.at(row.where());
    check_types(row, call(inputs_of(row)), report);
  }
}

void play_registration(const Json& entry, Report& report) {
  const std::string target = entry.at("target").as_string();
  if (entry.at("when").as_string() != "before initialize(O1)") throw NeedsFeature(entry.at("when").as_string());
  const Unregister at_the_end{"aten::" + target.substr(target.find('.') + 1)};
  register_operator(entry.at("api").as_string(), at_the_end.op);
  at_O1([&] { check_cases(entry, report, [&](const Tensors& x) { return Tensors{call_operator(target, x)}; }); });
}

void play_decorator(const Json& entry, Report& report) {
  const auto check = [&] {
    check_cases(entry, report, [&](const Tensors& x) { return call_decorated(entry.at("api").as_string(), x); });
  };
  const std::string when = entry.at("when").as_string();
  if (when == "no initialize") return check();
  if (when == "with O1") return at_O1(check);
  throw NeedsFeature(when);
}

}  // namespace

void replay_user_registry_table(const Json& table, Report& report) {
  for (const Json& entry : table.at("rows").items()) {
    const std::string api = entry.at("api").as_string();
    play(report, api + ", " + entry.at("when").as_string(), "user registrations",
         [&] { api.rfind("register_", 0) == 0 ? play_registration(entry, report) : play_decorator(entry, report); });
  }
}

}  // namespace oracle
