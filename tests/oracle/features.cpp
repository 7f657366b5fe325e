#include "tests/oracle/features.h"

#include <map>

#include "tests/oracle/events/events.h"
#include "tests/oracle/networks/layers.h"
#include "tests/oracle/session/optimizers.h"
#include "tests/oracle/session/wraps.h"
#include "tests/oracle/verdict/report.h"

namespace oracle {
namespace {

using Names = std::set<std::string>;

// What is known of each object of a case. `inputs` says how inputs came about, and `description` and `seed` are for people.
const Names& known_members(const std::string& object) {
  static const std::map<std::string, Names> kKnown = {
      {"case",
       {"format_version", "name", "kind", "description", "seed", "backend", "models", "optimizers", "initialize",
        "scaler_overrides", "inputs", "generated", "after_initialize", "events", "chunk_size", "lists", "calls"}},
      {"model", {"name", "kind", "layers", "params", "frozen", "pre_half", "randomize_bn"}},
      {"layer", {"type", "args"}},
      {"optimizer", {"name", "type", "args", "groups", "wrap"}},
      {"param group", {"params", "options"}},
      {"wrap", {"type", "args"}},
      {"initialize", {"args"}},
      {"scaler override", {"loss_id", "scale_window"}},
      {"state after initialize", {"params", "buffers", "properties", "amp_state", "num_loss_scalers"}},
      {"properties",
       {"enabled", "opt_level", "cast_model_type", "patch_torch_functions", "keep_batchnorm_fp32", "master_weights",
        "loss_scale"}}};
  return kKnown.at(object);
}

// Collects all unknown features of a case, so that they are reported together.
class Scan {
 public:
  void members(const Json& object, const Names& known, const std::string& what) {
    for (const auto& [name, value] : object.members())
      need(value.is_null() || known.count(name), "field '" + name + "' of " + what);
  }
  void members(const Json& object, const std::string& kind) { members(object, known_members(kind), kind); }
  void need(bool known, const std::string& feature) {
    if (!known) missing_.insert(feature);
  }
  void finish() const {
    std::string all;
    for (const auto& feature : missing_) all += (all.empty() ? "" : " and ") + feature;
    if (!all.empty()) throw NeedsFeature(all);
  }

 private:
  Names missing_;
};

// The member, or null where it is absent or null.
const Json* given(const Json& object, const std::string& name) {
  const Json* value = object.find(name);
  return value && !value->is_null() ? value : nullptr;
}

const std::vector<Json>& items_of(const Json& object, const std::string& name) {
  static const std::vector<Json> kNone;
  const Json* list = given(object, name);
  return list ? list->items() : kNone;
}

void scan_models(const Json& json, Scan& scan) {
  for (const Json& model : items_of(json, "models")) {
    scan.members(model, "model");
    for (const Json& layer : items_of(model, "layers")) {
      const std::string type = layer.at("type").as_string();
      scan.members(layer, "layer");
      scan.need(type == "Reuse" || layer_registry().count(type), "layer " + type);
    }
  }
}

void scan_optimizers(const Json& json, Scan& scan) {
  for (const Json& optimizer : items_of(json, "optimizers")) {
    const std::string type = optimizer.at("type").as_string();
    scan.members(optimizer, "optimizer");
    scan.need(optimizer_registry().count(type), type);
    for (const Json& group : optimizer.at("groups").items()) scan.members(group, "param group");
    const Json* wrap = given(optimizer, "wrap");
    if (!wrap) continue;
    scan.members(*wrap, "wrap");
    scan.need(wrap_registry().count(wrap->at("type").as_string()), wrap->at("type").as_string());
  }
}

void scan_initialize(const Json& json, Scan& scan) {
  if (const Json* initialize = given(json, "initialize")) scan.members(*initialize, "initialize");
  for (const Json& entry : items_of(json, "scaler_overrides")) scan.members(entry, "scaler override");
  const Json* after = given(json, "after_initialize");
  if (!after) return;
  scan.members(*after, "state after initialize");
  if (const Json* properties = given(*after, "properties")) scan.members(*properties, "properties");
}

void scan_events(const Json& json, Scan& scan) {
  for (const Json& event : items_of(json, "events")) {
    const std::string op = event.at("op").as_string();
    const auto handler = event_registry().find(op);
    scan.need(handler != event_registry().end(), "event " + op);
    if (handler == event_registry().end()) continue;
    scan.members(event, handler->second.fields, "event " + op);
    if (const Json* expect = given(event, "expect"))
      scan.members(*expect, handler->second.expects, "what event " + op + " expects");
  }
}

}  // namespace

void require_known(const Json& object, const Names& known, const std::string& what) {
  Scan scan;
  scan.members(object, known, what);
  scan.finish();
}

void require_features(const Json& json) {
  Scan scan;
  scan.members(json, "case");
  scan_models(json, scan);
  scan_optimizers(json, scan);
  scan_initialize(json, scan);
  scan_events(json, scan);
  scan.finish();
}

}  // namespace oracle
