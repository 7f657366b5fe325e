#include "tests/oracle/features.h"

#include <set>
#include <string>

#include "tests/oracle/events.h"
#include "tests/oracle/layers.h"
#include "tests/oracle/optimizers.h"
#include "tests/oracle/report.h"
#include "tests/oracle/wraps.h"

namespace oracle {
namespace {

using Missing = std::set<std::string>;

void scan_models(const Json& json, Missing& missing) {
  for (const Json& model : json.at("models").items()) {
    const Json* layers = model.find("layers");
    if (!layers) continue;
    for (const Json& layer : layers->items()) {
      const std::string type = layer.at("type").as_string();
      if (type != "Reuse" && !layer_registry().count(type)) missing.insert("layer " + type);
    }
  }
}

void scan_optimizers(const Json& json, Missing& missing) {
  for (const Json& optimizer : json.at("optimizers").items()) {
    const std::string type = optimizer.at("type").as_string();
    if (!optimizer_registry().count(type)) missing.insert(type);
    const Json* wrap = optimizer.find("wrap");
    if (wrap && !wrap->is_null() && !wrap_registry().count(wrap->at("type").as_string()))
      missing.insert(wrap->at("type").as_string());
  }
}

bool is_set(const Json& value) { return !value.is_null() && !(value.is_bool() && !value.as_bool()); }

void scan_events(const Json& json, Missing& missing) {
  for (const Json& event : json.at("events").items()) {
    const std::string op = event.at("op").as_string();
    auto handler = event_registry().find(op);
    if (handler == event_registry().end()) {
      missing.insert("event " + op);
      continue;
    }
    for (const auto& [field, value] : event.members()) {
      if (!handler->second.fields.count(field) && is_set(value)) missing.insert("field " + field + " of event " + op);
    }
  }
}

}  // namespace

void require_features(const Json& json) {
  Missing missing;
  scan_models(json, missing);
  scan_optimizers(json, missing);
  scan_events(json, missing);
  std::string all;
  for (const auto& feature : missing) all += (all.empty() ? "" : " and ") + feature;
  if (!all.empty()) throw NeedsFeature(all);
}

}  // namespace oracle
