// The table of O1 casts: for every function its input dtypes, the dtypes that reach the operator and the result's dtype.
//
// The values show that the recorded dtypes reach the operator: under amp a call returns, bit for bit and gradients included,
// the result of the same call without amp on tensors that were cast beforehand.
#include <ATen/Functions.h>

#include <algorithm>
#include <exception>
#include <set>
#include <tuple>
#include <utility>

#include "tests/libtorch_2_15.h"
#include "tests/oracle/features.h"
#include "tests/oracle/reading/case_file.h"
#include "tests/oracle/tables/o1_casts_calls.h"
#include "tests/oracle/tables/tables.h"
#include "tests/oracle/verdict/compare.h"
#include "tests/oracle/verdict/exceptions.h"
#include "tests/oracle/verdict/o1_session.h"

namespace oracle {
namespace {

namespace amp = apex::amp;
using at::ScalarType;
using at::Tensor;
using Tensors = CastCall::Tensors;
using Types = std::vector<ScalarType>;

// What a call ends with: a tensor and the gradients of its inputs, or an error.
struct Outcome {
  Tensor output;
  Tensors gradients;  // undefined where there is none
  std::string error;  // its name in Python
  std::string message;
  std::string backward_error;

  std::string name() const { return error.empty() ? dtype_name(output.scalar_type()) : "error " + error; }
};

// Not a number in 16 bits, most of them, so that a cast shows; small whole numbers where the type has no others.
Tensor values_for(const CastInput& input, size_t place, ScalarType type) {
  const int64_t count = c10::multiply_integers(input.sizes);
  const Tensor index = at::arange(count, at::kDouble) + 17.0 * static_cast<double>(input.like_first ? 1 : place + 1);
  const Tensor fractions = index.to(at::kFloat).mul(0.7548777).remainder(1) * 0.8 + 0.1;
  const Tensor values = input.signs ? index.remainder(2) * 2 - 1 : c10::isFloatingType(type) ? fractions : index.remainder(3);
  return values.view(input.sizes).to(type);
}

Types types_of_inputs(const Json& row, size_t count) {
  const std::string text = row.at("inputs").as_string();
  const auto comma = text.find(',');
  Types types(count, input_type(comma == std::string::npos ? text : text.substr(comma + 1)));
  types.at(0) = input_type(text.substr(0, comma));
  return types;
}

// The table has the types of floating tensors; all others reach the operator as they are.
Types recorded_types(const Json& row, Types types) {
  const auto& names = row.at("op_receives").items();
  size_t next = 0;
  for (ScalarType& type : types) {
    if (!c10::isFloatingType(type)) continue;
    type = next < names.size() ? dtype_from_name(names[next]) : type;
    ++next;
  }
  if (next != names.size()) {
    throw std::runtime_error(row.where() + ": " + std::to_string(next) + " floating tensors are passed, and op_receives has " +
                             std::to_string(names.size()));
  }
  return types;
}

Types received_types(const CastDifference& difference, const Json& row, const Types& passed) {
  using Receives = CastDifference::Receives;
  const bool mixed = std::count(passed.begin(), passed.end(), passed.front()) != static_cast<int64_t>(passed.size());
  const auto all = [&](ScalarType type) { return Types(passed.size(), type); };
  switch (difference.receives) {
    case Receives::as_recorded:
      return recorded_types(row, passed);
    case Receives::what_is_passed:
      return passed;
    case Receives::float32:
      return all(at::kFloat);
    case Receives::promoted:
      return mixed ? all(at::kFloat) : passed;
    case Receives::self_type:
      return all(passed.front());
  }
  return passed;
}

// The name of what `action` throws, and its message; empty if it returns.
template <class Action>
std::pair<std::string, std::string> error_of(Action action) {
  try {
    action();
  } catch (const std::exception& error) {
    return {python_name(error), error.what()};
  }
  return {};
}

// Calls with inputs of the types in `passed`, cast to those in `received` first if there are any.
Outcome outcome_of(const CastCall& call, const Types& passed, const Types& received) {
  Tensors leaves, arguments;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    leaves.push_back(values_for(call.inputs[i], i, passed.at(i)));
    if (leaves.back().is_floating_point()) leaves.back().requires_grad_(call.differentiable);
    arguments.push_back(received.empty() ? leaves.back() : leaves.back().to(received.at(i)));
  }
  Outcome outcome;
  std::tie(outcome.error, outcome.message) = error_of([&] { outcome.output = call.run(arguments); });
  if (!outcome.error.empty()) return outcome;
  // Some operators take a mix of types, and fail on the way back.
  const auto backward = [&] { outcome.output.backward(at::ones_like(outcome.output)); };
  if (outcome.output.requires_grad()) outcome.backward_error = error_of(backward).first;
  for (const Tensor& leaf : leaves) outcome.gradients.push_back(leaf.grad());
  outcome.output = outcome.output.detach();
  return outcome;
}

std::string tensor_text(const Tensor& tensor) { return tensor.defined() ? dtype_name(tensor.scalar_type()) : "none"; }

void compare_bits(Report& report, const std::string& what, const Tensor& got, const Tensor& expected) {
  compare_text(report, what + ", dtype", tensor_text(got), tensor_text(expected));
  if (!got.defined() || !expected.defined() || got.scalar_type() != expected.scalar_type()) return;
  report.check(at::equal(got, expected), what + ", values", "those of a call with tensors cast beforehand", "others");
}

// One case of a function, all but the initialization of amp.
class CaseCheck {
 public:
  CaseCheck(const CastCall& call, const CastDifference& difference, const Json& row, std::string plain_result, Report& report)
      : call_(call),
        difference_(difference),
        row_(row),
        plain_result_(std::move(plain_result)),
        report_(report),
        passed_(types_of_inputs(row, call.inputs.size())) {
    if (row.at("float_args").as_int() != static_cast<int64_t>(call.inputs.size())) {
      throw std::runtime_error(row.where() + ": the call was written with another number of tensors");
    }
  }

  void without_amp() {
    place("without amp");
    const Outcome plain = outcome_of(call_, passed_, {});
    compare_text(report_, "result", plain.name(), plain_result_);
    if (ends_well()) expected_ = cast_beforehand();
    if (ends_well() && difference_.receives == CastDifference::Receives::as_recorded) {
      compare_text(report_, "result of a call with the recorded types", expected_.name(), row_.at("output").as_string());
    }
  }

  void under_amp() {
    place("O1");
    const Outcome got = outcome_of(call_, passed_, {});
    const std::string wanted = ends_well() ? expected_.name() : "error " + row_.at("error").as_string();
    report_.check(got.name() == wanted, "result", wanted, got.name() + " " + got.message);
    if (!got.error.empty() || !ends_well()) return;
    compare_bits(report_, "output", got.output, expected_.output);
    compare_text(report_, "error of backward", got.backward_error, expected_.backward_error);
    for (size_t i = 0; i < got.gradients.size(); ++i) {
      compare_bits(report_, "gradient " + std::to_string(i), got.gradients[i], expected_.gradients.at(i));
      if (got.gradients[i].defined()) {
        compare_text(report_, "gradient's dtype", tensor_text(got.gradients[i]), dtype_name(passed_[i]));
      }
    }
  }

 private:
  // Without casts by amp; products on 16-bit tensors in the way in which they compute under amp.
  Outcome cast_beforehand() const {
    const auto run = [&] { return outcome_of(call_, passed_, received_types(difference_, row_, passed_)); };
    if (!computes_in_float32()) return run();
    return at_O1([&] {
      const amp::disable_casts off;
      return run();
    });
  }
  bool ends_well() const { return !row_.has("error") || difference_.receives != CastDifference::Receives::as_recorded; }
  void place(const std::string& when) { report_.at(row_.at("inputs").as_string() + ", " + when); }

  const CastCall& call_;
  CastDifference difference_;
  const Json& row_;
  std::string plain_result_;
  Report& report_;
  Types passed_;
  Outcome expected_;
};

// Operators beyond Apex's lists are left alone only by Apex's own lists; all the others are played with the lists in use.
amp::InitializeOptions options_for(const Json& op) {
  static const std::set<std::string> kLists = {"banned",
                                               "fp16",
                                               "fp32",
                                               "in-place of fp16/promote (arguments follow self)",
                                               "in-place of fp32 (any half is an error)",
                                               "in-place of fp32 (half self is an error)",
                                               "promote",
                                               "sequence_promote",
                                               "unlisted"};
  const std::string list = op.at("list").as_string();
  if (!kLists.count(list)) throw NeedsFeature("list " + list + " of casts");
  if (list != "unlisted") return {};
  return amp::InitializeOptions().casts(apex::opt_levels::CastLists::from_yaml_string("extensions: false"));
}

// The result of a call without amp. The torch of the record computed addmv of two dtypes, which 2.15 refuses.
std::string plain_result(const std::string& name, const Json& row) {
  const std::string inputs = row.at("inputs").as_string();
  const bool is_mix = inputs == "half,float" || inputs == "float,half";
  if (::test::kIsLibTorch215 && is_mix && (name == "torch.addmv" || name == "Tensor.addmv")) return "error RuntimeError";
  return row.at("without_amp").as_string();
}

void play_op(const Json& op, Report& report) {
  require_known(op, {"namespace", "op", "list", "cases"}, "a function of the table of casts");
  std::vector<CaseCheck> checks;
  for (const Json& row : op.at("cases").items()) {
    const std::string name = cast_call_name(op.at("namespace").as_string(), op.at("op").as_string(), row.string_or("form", ""));
    require_known(row, {"inputs", "float_args", "form", "without_amp", "output", "error", "op_receives"}, "a row of casts");
    const CastDifference difference = difference_of(name, report);
    if (difference.no_such_call) continue;
    const auto call = cast_calls().find(name);
    if (call == cast_calls().end()) throw NeedsFeature("a C++ call for " + name);
    checks.emplace_back(call->second, difference, row, plain_result(name, row), report);
  }
  for (auto& check : checks) check.without_amp();
  at_O1(options_for(op), [&] {
    for (auto& check : checks) check.under_amp();
  });
}

void flatten(const Json& json, std::vector<std::string>& names) {
  if (json.is_string()) return names.push_back(json.as_string());
  for (const Json& item : json.items()) flatten(item, names);
}

std::vector<std::string> expected_outputs(const Json& row, Report& report) {
  auto names = module_difference(row.at("module").as_string(), row.at("input").as_string(), report);
  if (names.empty()) flatten(row.at("output"), names);
  return names;
}

void play_module(const Json& row, Report& report) {
  if (row.at("weights").as_string() != "float32") throw NeedsFeature("weights of " + row.at("weights").as_string());
  require_known(row, {"module", "weights", "input", "output", "error"}, "a module's row");
  const std::vector<std::string> expected = expected_outputs(row, report);
  const ScalarType input = input_type(row.at("input").as_string());
  at_O1([&] {
    const ModuleOutcome outcome = run_cast_module(row.at("module").as_string(), input);
    compare_text(report, "number of outputs", std::to_string(outcome.outputs.size()), std::to_string(expected.size()));
    for (size_t i = 0; i < std::min(expected.size(), outcome.outputs.size()); ++i) {
      compare_text(report, "output " + std::to_string(i), tensor_text(outcome.outputs[i]), expected[i]);
    }
    if (outcome.outputs.at(0).requires_grad()) outcome.outputs.at(0).sum().backward();
    for (const Tensor& parameter : outcome.parameters) {
      compare_text(report, "gradient of a parameter", tensor_text(parameter.grad()), "float32");
    }
  });
}

}  // namespace

std::string cast_call_name(const std::string& place, const std::string& op, const std::string& form) {
  return place + "." + op + (form.empty() ? "" : " (" + form + ")");
}

void add_both(CastCalls& calls, const std::string& op, const std::vector<CastInput>& inputs, const CastRun& function,
              const CastRun& method, const std::string& form) {
  calls[cast_call_name("torch", op, form)] = {inputs, function};
  calls[cast_call_name("Tensor", op, form)] = {inputs, method};
}

const CastCalls& cast_calls() {
  static const CastCalls kCalls = [] {
    CastCalls calls;
    add_pointwise_calls(calls);
    add_arithmetic_calls(calls);
    add_product_calls(calls);
    add_torch_calls(calls);
    add_functional_calls(calls);
    add_loss_calls(calls);
    calls["Tensor.cpu"] = {{{{3, 4}}}, [](Tensors& x) { return amp::cpu(x[0]); }};
    return calls;
  }();
  return kCalls;
}

void replay_o1_table(const Json& table, Report& report) {
  for (const Json& op : table.at("ops").items()) {
    const std::string item = cast_call_name(op.at("namespace").as_string(), op.at("op").as_string(), "");
    play(report, item, "O1 casts", [&] { play_op(op, report); });
  }
  for (const Json& row : table.at("modules").items()) {
    const std::string item = "module " + row.at("module").as_string() + " of " + row.at("input").as_string();
    play(report, item, "O1 casts", [&] { play_module(row, report); });
  }
}

}  // namespace oracle
