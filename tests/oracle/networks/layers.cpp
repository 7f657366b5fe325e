#include "tests/oracle/networks/layers.h"

#include "tests/oracle/verdict/report.h"

namespace oracle {

const LayerRegistry& layer_registry() {
  static const LayerRegistry kRegistry = [] {
    LayerRegistry registry;
    add_weighted_layers(registry);
    add_normalization_layers(registry);
    add_activation_layers(registry);
    add_pooling_layers(registry);
    add_sequence_layers(registry);
    return registry;
  }();
  return kRegistry;
}

LayerArgs::LayerArgs(const Json& layer, std::string type) : args_(layer.find("args")), type_(std::move(type)) {
  if (args_ && args_->is_null()) args_ = nullptr;
}

const Json* LayerArgs::find(const std::string& name) {
  asked_.insert(name);
  const Json* value = args_ ? args_->find(name) : nullptr;
  return value && !value->is_null() ? value : nullptr;
}

int64_t LayerArgs::integer(const std::string& name) {
  const Json* value = find(name);
  if (!value) throw std::runtime_error("layer " + type_ + " has no argument '" + name + "'");
  return value->as_int();
}

int64_t LayerArgs::integer(const std::string& name, int64_t fallback) { return has(name) ? integer(name) : fallback; }

double LayerArgs::number(const std::string& name, double fallback) {
  const Json* value = find(name);
  return value ? value->as_double() : fallback;
}

bool LayerArgs::boolean(const std::string& name, bool fallback) {
  const Json* value = find(name);
  return value ? value->as_bool() : fallback;
}

std::vector<int64_t> LayerArgs::sizes(const std::string& name, size_t n) {
  const Json* value = find(name);
  if (!value) throw std::runtime_error("layer " + type_ + " has no argument '" + name + "'");
  if (!value->is_array()) return std::vector<int64_t>(n, value->as_int());
  if (value->items().size() != n) {
    throw std::runtime_error(value->where() + ": " + name + " needs " + std::to_string(n) + " integers");
  }
  return value->as_ints();
}

std::vector<int64_t> LayerArgs::sizes(const std::string& name, size_t n, int64_t fallback) {
  return has(name) ? sizes(name, n) : std::vector<int64_t>(n, fallback);
}

void LayerArgs::finish() const {
  if (!args_) return;
  for (const auto& [name, value] : args_->members()) {
    if (!asked_.count(name)) throw NeedsFeature("argument '" + name + "' of layer " + type_);
  }
}

}  // namespace oracle
