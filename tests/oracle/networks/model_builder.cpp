#include "tests/oracle/networks/model_builder.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tests/oracle/verdict/report.h"

namespace oracle {
namespace {

Layer make_layer(const Json& layer) {
  const std::string type = layer.at("type").as_string();
  auto factory = layer_registry().find(type);
  if (factory == layer_registry().end()) throw NeedsFeature("layer type " + type);
  LayerArgs args(layer, type);
  Layer made = factory->second(args);
  args.finish();
  return made;
}

bool lists(const Json* names, const std::string& name) {
  if (!names || names->is_null()) return false;
  return std::any_of(names->items().begin(), names->items().end(), [&](const Json& n) { return n.as_string() == name; });
}

}  // namespace

NetImpl::NetImpl(const Json& model, const CaseFile& case_file) {
  const std::string kind = model.string_or("kind", "layers");
  if (kind == "params") {
    add_bare_parameters(model, case_file);
  } else if (kind == "layers") {
    add_layers(model.at("layers"));
    load_initial_values(model.at("name").as_string(), case_file);
  } else {
    throw NeedsFeature("model kind '" + kind + "'");
  }
  for (auto& parameter : named_parameters()) parameter.value().set_requires_grad(!lists(model.find("frozen"), parameter.key()));
  if (model.bool_or("pre_half", false)) to(at::kHalf);
}

void NetImpl::add_layers(const Json& layers) {
  for (const Json& layer : layers.items()) {
    const size_t index = layers_.size();
    if (layer.at("type").as_string() == "Reuse") {
      const auto other = static_cast<size_t>(layer.at("args").at("index").as_int());
      layers_.push_back(layers_.at(other));
      origin_.push_back(origin_.at(other));
      continue;
    }
    layers_.push_back(make_layer(layer));
    origin_.push_back(index);
    if (layers_.back().module) register_module(std::to_string(index), layers_.back().module);
  }
}

void NetImpl::add_bare_parameters(const Json& model, const CaseFile& case_file) {
  const std::string prefix = "init." + model.at("name").as_string() + "/";
  for (size_t i = 0; i < model.at("params").items().size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    register_parameter(name, case_file.tensor(prefix + name));
  }
}

void NetImpl::load_initial_values(const std::string& model, const CaseFile& case_file) {
  at::NoGradGuard no_grad;
  auto load = [&](const std::string& name, at::Tensor& tensor) {
    const at::Tensor value = case_file.tensor("init." + model + "/" + name);
    TORCH_CHECK(value.sizes() == tensor.sizes(), "init.", model, "/", name, " has shape ", value.sizes(), ", the layer ",
                tensor.sizes());
    tensor.copy_(value);
  };
  for (auto& parameter : named_parameters()) load(parameter.key(), parameter.value());
  for (auto& buffer : named_buffers()) load(buffer.key(), buffer.value());
}

at::Tensor NetImpl::forward(const at::Tensor& input) {
  TORCH_CHECK(!layers_.empty(), "a model of bare parameters has no forward");
  Tensors x{input};
  for (auto& layer : layers_) x = layer.forward(x);
  return x.at(0);
}

std::string NetImpl::resolve(const std::string& parameter) const {
  const size_t dot = parameter.find('.');
  if (dot == std::string::npos) return parameter;
  const size_t index = std::stoul(parameter.substr(0, dot));
  return std::to_string(origin_.at(index)) + parameter.substr(dot);
}

}  // namespace oracle
