#include "tests/oracle/session/optimizers.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <set>

#include "tests/oracle/verdict/report.h"

namespace oracle {
namespace {

namespace optim = torch::optim;

template <class T>
using Setter = std::function<void(T&, const Json&)>;
template <class T>
using Setters = std::map<std::string, Setter<T>>;
template <class T>
using StateReader = std::function<std::vector<StateEntry>(const T&)>;

// Absent state (an undefined tensor) is no entry, as in Python.
std::vector<StateEntry> entries(std::vector<StateEntry> tensors) {
  std::vector<StateEntry> present;
  for (auto& entry : tensors) {
    if (entry.tensor.defined()) present.push_back(std::move(entry));
  }
  return present;
}

std::vector<StateEntry> entries(int64_t step, std::vector<StateEntry> tensors) {
  std::vector<StateEntry> present = entries(std::move(tensors));
  present.push_back({"step", {}, static_cast<double>(step)});
  return present;
}

template <class Opt, class Options, class State>
OptimizerType describe(const Options& defaults, Setters<Options> setters, StateReader<State> read_state) {
  OptimizerType type;
  type.defaults = [defaults] { return std::make_unique<Options>(defaults); };
  type.make = [](OptimizerType::Groups groups, const OptimizerType::Options& options) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<Opt>(std::move(groups), static_cast<const Options&>(options));
  };
  type.in_larc = make_larc<Opt>;
  type.set_option = [setters](OptimizerType::Options& options, const std::string& name, const Json& value) {
    auto setter = setters.find(name);
    if (setter == setters.end()) return false;
    setter->second(static_cast<Options&>(options), value);
    return true;
  };
  type.read_state = [read_state](const optim::OptimizerParamState& state) {
    return read_state(static_cast<const State&>(state));
  };
  return type;
}

OptimizerType sgd() {
  using O = optim::SGDOptions;
  constexpr double kPythonDefaultRate = 1e-3;
  return describe<optim::SGD, O, optim::SGDParamState>(
      O(kPythonDefaultRate),
      {{"lr", [](O& o, const Json& v) { o.lr(v.as_double()); }},
       {"momentum", [](O& o, const Json& v) { o.momentum(v.as_double()); }},
       {"dampening", [](O& o, const Json& v) { o.dampening(v.as_double()); }},
       {"weight_decay", [](O& o, const Json& v) { o.weight_decay(v.as_double()); }},
       {"nesterov", [](O& o, const Json& v) { o.nesterov(v.as_bool()); }}},
      [](const optim::SGDParamState& s) {
        return entries({{"momentum_buffer", s.momentum_buffer()}});
      });
}

// Adam and AdamW have options and state of the same names.
template <class Opt, class O, class State>
OptimizerType adam() {
  OptimizerType type = describe<Opt, O, State>(
      O(),
      {{"lr", [](O& o, const Json& v) { o.lr(v.as_double()); }},
       {"betas",
        [](O& o, const Json& v) {
          o.betas({v.items().at(0).as_double(), v.items().at(1).as_double()});
        }},
       {"eps", [](O& o, const Json& v) { o.eps(v.as_double()); }},
       {"weight_decay", [](O& o, const Json& v) { o.weight_decay(v.as_double()); }},
       {"amsgrad", [](O& o, const Json& v) { o.amsgrad(v.as_bool()); }}},
      [](const State& s) {
        return entries(s.step(),
                       {{"exp_avg", s.exp_avg()}, {"exp_avg_sq", s.exp_avg_sq()}, {"max_exp_avg_sq", s.max_exp_avg_sq()}});
      });
  type.steps_like_sign = true;
  return type;
}

OptimizerType rmsprop() {
  using O = optim::RMSpropOptions;
  OptimizerType type = describe<optim::RMSprop, O, optim::RMSpropParamState>(
      O(),
      {{"lr", [](O& o, const Json& v) { o.lr(v.as_double()); }},
       {"alpha", [](O& o, const Json& v) { o.alpha(v.as_double()); }},
       {"eps", [](O& o, const Json& v) { o.eps(v.as_double()); }},
       {"weight_decay", [](O& o, const Json& v) { o.weight_decay(v.as_double()); }},
       {"momentum", [](O& o, const Json& v) { o.momentum(v.as_double()); }},
       {"centered", [](O& o, const Json& v) { o.centered(v.as_bool()); }}},
      [](const optim::RMSpropParamState& s) {
        return entries(s.step(),
                       {{"square_avg", s.square_avg()}, {"momentum_buffer", s.momentum_buffer()}, {"grad_avg", s.grad_avg()}});
      });
  type.steps_like_sign = true;
  return type;
}

OptimizerType adagrad() {
  using O = optim::AdagradOptions;
  OptimizerType type = describe<optim::Adagrad, O, optim::AdagradParamState>(
      O(),
      {{"lr", [](O& o, const Json& v) { o.lr(v.as_double()); }},
       {"lr_decay", [](O& o, const Json& v) { o.lr_decay(v.as_double()); }},
       {"eps", [](O& o, const Json& v) { o.eps(v.as_double()); }},
       {"weight_decay", [](O& o, const Json& v) { o.weight_decay(v.as_double()); }},
       {"initial_accumulator_value", [](O& o, const Json& v) { o.initial_accumulator_value(v.as_double()); }}},
      [](const optim::AdagradParamState& s) {
        return entries(s.step(), {{"sum", s.sum()}});
      });
  type.steps_like_sign = true;
  return type;
}

// Python arguments that choose an implementation and change no result.
bool chooses_implementation(const std::string& name) {
  static const std::set<std::string> kNames = {"foreach", "fused", "capturable", "differentiable"};
  return kNames.count(name) > 0;
}

}  // namespace

const std::map<std::string, OptimizerType>& optimizer_registry() {
  static const std::map<std::string, OptimizerType> kRegistry = [] {
    std::map<std::string, OptimizerType> registry = {
        {"SGD", sgd()},
        {"Adam", adam<optim::Adam, optim::AdamOptions, optim::AdamParamState>()},
        {"AdamW", adam<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>()},
        {"RMSprop", rmsprop()},
        {"Adagrad", adagrad()}};
    add_fused_optimizers(registry);
    return registry;
  }();
  return kRegistry;
}

const OptimizerType& optimizer_type(const std::string& name) {
  auto type = optimizer_registry().find(name);
  if (type == optimizer_registry().end()) throw NeedsFeature(name);
  return type->second;
}

void set_options(const std::string& type, OptimizerType::Options& options, const Json* values) {
  if (!values || values->is_null()) return;
  for (const auto& [name, value] : values->members()) {
    if (optimizer_type(type).set_option(options, name, value) || chooses_implementation(name)) continue;
    throw NeedsFeature("option '" + name + "' of " + type);
  }
}

}  // namespace oracle
