// record: compares models, gradients, what the optimizers hold, and their states with what the case stored under a tag.
#include <algorithm>
#include <set>

#include "tests/oracle/events/events.h"
#include "tests/oracle/features.h"
#include "tests/oracle/session/optimizers.h"
#include "tests/oracle/session/session.h"

namespace oracle {
namespace {

std::string dtype_or_null(const at::Tensor& tensor) { return tensor.defined() ? dtype_name(tensor.scalar_type()) : "null"; }

// The kinds of values that a record may name. Its expectations list gradients and states.
void check_record_kinds(const Json& event) {
  static const std::set<std::string> kKnown = {"model", "opt_params", "opt_state", "model_grads", "opt_grads"};
  for (const Json& item : event.at("what").items()) {
    if (!kKnown.count(item.as_string())) throw NeedsFeature("a record of '" + item.as_string() + "'");
  }
}

bool records(const Json& event, const std::string& what) {
  const auto& items = event.at("what").items();
  return std::any_of(items.begin(), items.end(), [&](const Json& item) { return item.as_string() == what; });
}

void compare_gradient(Session& session, const std::string& name, const at::Tensor& gradient) {
  if (session.relaxed(kGradientsApart)) return session.leave_stored(name);
  if (gradient.defined()) session.compare_stored(name, gradient, session.tolerances().gradient());
}

Tolerance parameter_tolerance(Session& session, const at::Tensor& tensor, double sign_steps) {
  if (!session.relaxed(kParametersWithinSignSteps)) return session.tolerances().parameter(tensor.scalar_type(), sign_steps);
  return session.tolerances().resumed_parameter(tensor.scalar_type(), session.largest_sign_steps());
}

void compare_state(Session& session, const std::string& prefix, const std::string& held, const StateEntry& entry) {
  if (session.relaxed(kStatesApart)) return session.leave_stored(prefix + held + ".state." + entry.name);
  const std::string optimizer = held.substr(0, held.find('.'));
  const double largest = session.case_file().largest(prefix + optimizer + ".", ".state." + entry.name);
  session.compare_stored(prefix + held + ".state." + entry.name, entry.tensor,
                         session.tolerances().state(entry.tensor.scalar_type(), largest));
}

void record_models(Session& session, const std::string& prefix) {
  auto compare = [&](const std::string& id, const at::Tensor& tensor) {
    const auto expected = session.case_file().expected(prefix + id, tensor.numel());
    if (!expected) return session.report().fail(prefix + id, "a stored tensor", "none in tensors.safetensors");
    compare_tensor(session.report(), prefix + id, tensor, *expected,
                   parameter_tolerance(session, tensor, session.sign_steps_of(id)));
  };
  for (auto& slot : session.models()) {
    for (const auto& entry : slot.net->named_parameters()) compare(slot.name + "/" + entry.key(), entry.value());
    for (const auto& entry : slot.net->named_buffers()) compare(slot.name + "/" + entry.key(), entry.value());
  }
}

void record_model_grads(Session& session, const std::string& prefix, const Json& expect) {
  for (const auto& [id, dtype] : expect.at("model_grads").members()) {
    const at::Tensor gradient = session.parameter(id).grad();
    compare_text(session.report(), "gradient of " + id + ", dtype", dtype_or_null(gradient), dtype.text());
    compare_gradient(session, prefix + "grad." + id, gradient);
  }
}

// What an optimizer keeps for one of its parameters.
struct Held {
  OptimizerSlot& slot;
  at::Tensor parameter;
  std::string id;    // of the model parameter behind it
  std::string name;  // OPTIMIZER.gG.pP
};

void record_state(Session& session, const std::string& prefix, const Held& held, const Json& expect) {
  std::vector<StateEntry> entries;
  auto state = held.slot.optimizer->state().find(held.parameter.unsafeGetTensorImpl());
  if (state != held.slot.optimizer->state().end()) entries = optimizer_type(held.slot.type).read_state(*state->second);
  for (const auto& [name, wanted] : expect.members()) {
    const std::string what = held.name + ", state " + name;
    auto entry = std::find_if(entries.begin(), entries.end(), [&, &key = name](const StateEntry& e) { return e.name == key; });
    if (entry == entries.end()) {
      session.report().fail(what, wanted.text(), "none");
    } else if (wanted.is_string() && entry->tensor.defined()) {
      compare_text(session.report(), what + ", dtype", dtype_name(entry->tensor.scalar_type()), wanted.as_string());
      compare_state(session, prefix, held.name, *entry);
    } else if (wanted.is_number() && !entry->tensor.defined()) {
      compare_number(session.report(), what, entry->number, wanted.as_double(), {});
    } else {
      session.report().fail(what, wanted.text(),
                            entry->tensor.defined() ? dtype_or_null(entry->tensor) : number_text(entry->number));
    }
  }
  compare_text(session.report(), held.name + ", number of states", std::to_string(entries.size()),
               std::to_string(expect.members().size()));
}

void record_held(Session& session, const Json& event, const std::string& prefix, const Held& held, const Json& expect) {
  require_known(expect, {"model_param", "dtype", "is_model_param", "grad", "state"}, "what a record expects of a parameter");
  Report& report = session.report();
  const at::Tensor model_parameter = session.parameter(held.id);
  const bool is_model_param = held.parameter.is_same(model_parameter);
  compare_text(report, held.name + ", model parameter", held.id, expect.at("model_param").as_string());
  compare_text(report, held.name + ", dtype", dtype_name(held.parameter.scalar_type()), expect.at("dtype").as_string());
  compare_text(report, held.name + ", is the model's own tensor", bool_text(is_model_param),
               expect.at("is_model_param").text());
  if (records(event, "opt_params") && !is_model_param) {
    session.compare_stored(prefix + held.name, held.parameter,
                           parameter_tolerance(session, held.parameter, session.sign_steps(held.slot.name)));
  }
  if (const Json* gradient = expect.find("grad")) {
    compare_text(report, held.name + ", gradient's dtype", dtype_or_null(held.parameter.grad()), gradient->text());
    // That of the model's own tensor is stored, and compared, as the model's.
    if (!is_model_param) compare_gradient(session, prefix + held.name + ".grad", held.parameter.grad());
  }
  if (const Json* state = expect.find("state")) record_state(session, prefix, held, *state);
}

void record_optimizers(Session& session, const Json& event, const std::string& prefix, const Json& expect) {
  size_t seen = 0;
  for (auto& slot : session.optimizers()) {
    auto& groups = slot.optimizer->param_groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t p = 0; p < groups[g].params().size(); ++p) {
        const std::string name = slot.name + ".g" + std::to_string(g) + ".p" + std::to_string(p);
        const Json* wanted = expect.find(name);
        if (!wanted) {
          session.report().fail(name, "not to exist", "a parameter");
          continue;
        }
        ++seen;
        record_held(session, event, prefix, {slot, groups[g].params()[p], slot.ids.at(g).at(p), name}, *wanted);
      }
    }
  }
  compare_text(session.report(), "number of parameters in optimizers", std::to_string(seen),
               std::to_string(expect.members().size()));
}

// "exp_avg_sq" means two tensors, "exp_avg_sq0" and "exp_avg_sq1", stored without their own entry.
void record_group(Session& session, const std::string& prefix, const OptimizerSlot& slot, size_t group, const Json& expect) {
  const auto entries = optimizer_type(slot.type).read_group_state(*slot.optimizer, group);
  const std::string name = slot.name + ".g" + std::to_string(group);
  for (const auto& [key, wanted] : expect.members()) {
    size_t compared = 0;
    for (const StateEntry& entry : entries) {
      if (entry.name.compare(0, key.size(), key) != 0) continue;
      ++compared;
      if (wanted.is_number()) {
        compare_number(session.report(), name + "." + key, entry.number, wanted.as_double(), {});
      } else if (entry.tensor.defined()) {
        session.compare_stored(prefix + name + "." + entry.name, entry.tensor, session.tolerances().norm());
      }
    }
    if (compared == 0) session.report().fail(name + "." + key, wanted.text(), "none");
  }
}

void record_groups(Session& session, const std::string& prefix, const Json& expect) {
  for (const auto& [optimizer, groups] : expect.members()) {
    OptimizerSlot& slot = session.optimizer(optimizer);
    if (!optimizer_type(slot.type).read_group_state) throw NeedsFeature("state per group of " + slot.type);
    for (size_t group = 0; group < groups.items().size(); ++group) {
      record_group(session, prefix, slot, group, groups.items()[group]);
    }
  }
}

void play_record(Session& session, const Json& event) {
  const std::string prefix = "rec." + event.at("tag").as_string() + ".";
  const Json& expect = event.at("expect");
  check_record_kinds(event);
  if (records(event, "model")) record_models(session, prefix);
  if (expect.has("model_grads")) record_model_grads(session, prefix, expect);
  if (expect.has("opt_params")) record_optimizers(session, event, prefix, expect.at("opt_params"));
  if (expect.has("group_state")) record_groups(session, prefix, expect.at("group_state"));
}

}  // namespace

void add_record_event(EventRegistry& registry) {
  registry["record"] = {{"tag", "what"}, {"model_grads", "opt_params", "group_state"}, play_record};
}

}  // namespace oracle
