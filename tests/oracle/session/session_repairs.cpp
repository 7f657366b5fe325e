// The entries of the repair file that apply to an event, by the case's content.
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>

#include <algorithm>
#include <set>

#include "tests/oracle/session/optimizers.h"
#include "tests/oracle/session/session.h"

namespace oracle {
namespace {

bool loads_optimizer(const Json& event) {
  const Json* order = event.find("order");
  if (!order) return true;
  const auto& parts = order->items();
  return std::any_of(parts.begin(), parts.end(), [](const Json& part) { return part.as_string() == "optimizer"; });
}

bool overflows(const Json& event) {
  const Json* expect = event.find("expect");
  const Json* will_skip = expect ? expect->find("will_skip") : nullptr;
  if (!will_skip) return false;
  const auto& optimizers = will_skip->members();
  return std::any_of(optimizers.begin(), optimizers.end(), [](const auto& entry) { return entry.second.as_bool(); });
}

// Trainable float32 parameters, of which at least one is the optimizer's own beside masters of others.
bool has_native_params(Session& session, const OptimizerSlot& slot) {
  for (const auto& group : slot.ids) {
    for (const auto& id : group) {
      const at::Tensor parameter = session.parameter(id);
      if (parameter.requires_grad() && parameter.scalar_type() == at::kFloat) return true;
    }
  }
  return false;
}

// Of a LAMB, as the case gives it; "default" where it gives none.
std::string max_grad_norm_of(const Json& json, const std::string& name) {
  for (const Json& optimizer : json.at("optimizers").items()) {
    if (optimizer.at("name").as_string() != name) continue;
    const Json* args = optimizer.find("args");
    const Json* given = args ? args->find("max_grad_norm") : nullptr;
    if (given) return number_text(given->as_double());
  }
  return "default";
}

bool is_of_several_models(const OptimizerSlot& slot) {
  std::set<std::string> models;
  for (const auto& group : slot.ids) {
    for (const auto& id : group) models.insert(id.substr(0, id.find('/')));
  }
  return models.size() > 1;
}

// What the optimizer's class does with gradients in the model is left to it: FusedSGD with materialize_master_grads false.
bool steps_model_grads(const OptimizerSlot& slot) {
  const auto* fused = dynamic_cast<const amp::StepsMasters*>(slot.optimizer.get());
  return fused && !fused->materialize_master_grads();
}

// Of the parameters of a group that have gradients, the last has no momentum yet, while others have.
bool last_is_fresh(const OptimizerSlot& slot) {
  for (const auto& group : slot.optimizer->param_groups()) {
    bool known = false, fresh = false;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      fresh = slot.optimizer->state().find(parameter.unsafeGetTensorImpl()) == slot.optimizer->state().end();
      known |= !fresh;
    }
    if (known && fresh) return true;
  }
  return false;
}

}  // namespace

Features Session::features_of(const Json& event) {
  const Json& json = case_file_.json();
  const std::string op = event.at("op").as_string();
  Features features = {{"event", op},
                       {"kind", json.at("kind").as_string()},
                       {"backend", json.string_or("backend", "fused")},
                       {"masters", bool_text(amp_enabled_ && amp::properties().master_weights.value_or(false))},
                       {"casts", bool_text(amp_enabled_ && amp::properties().patch_torch_functions)},
                       {"overflows", bool_text(overflows(event))}};
  if (amp_enabled_) {
    const auto& scale = amp::properties().loss_scale;
    features["static_loss_scale"] = scale.dynamic ? "none" : number_text(scale.value);
  }
  bool native = false, accumulates = false, steps_like_sign = false;
  for (const auto& slot : optimizers_) {
    native |= has_native_params(*this, slot);
    accumulates |= history_.accumulates(slot.name);
    steps_like_sign |= optimizer_type(slot.type).steps_like_sign;
  }
  features["native_params"] = bool_text(native);
  features["accumulates"] = bool_text(accumulates);
  features["steps_like_sign"] = bool_text(steps_like_sign);
  if (op == "load") features["loads_optimizer"] = bool_text(loads_optimizer(event));
  if (op == "forward") {
    features["no_grad"] = bool_text(event.bool_or("no_grad", false));
    features["changed_since_evaluation"] = bool_text(history_.changed_since_evaluation());
  }
  if (op == "backward") {
    const OptimizerSlot& slot = optimizer(event.at("optimizers").items().at(0).as_string());
    const auto before = history_.scale_of_last_pass(slot.name);
    const bool fell = before && amp_enabled_ && amp::loss_scaler(event.int_or("loss_id", 0)).loss_scale() < *before;
    features["scale_fell_between_passes"] = bool_text(fell);
    features["several_models"] = bool_text(is_of_several_models(slot));
    features["steps_model_grads"] = bool_text(steps_model_grads(slot));
  }
  if (op == "step") {
    const OptimizerSlot& slot = optimizer(event.at("optimizer").as_string());
    features["optimizer"] = slot.type;
    features["last_is_fresh"] = bool_text(last_is_fresh(slot));
    features["max_grad_norm"] = max_grad_norm_of(json, slot.name);
  }
  return features;
}

void Session::apply_repairs(const Json& event) {
  static const std::set<std::string> kEffects = {kParametersWithinSignSteps, kStatesApart, kValuesApart, kGradientsApart};
  for (const Repair* repair : report_.repairs().matching("events", features_of(event))) {
    report_.repaired(*repair);
    for (const Json& effect : repair->expect.items()) {
      if (!kEffects.count(effect.as_string())) throw std::runtime_error(effect.where() + ": no such effect");
      relaxed_.insert(effect.as_string());
    }
  }
  if (relaxed(kValuesApart)) report_.ignore_values();
}

}  // namespace oracle
