#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/oracle/reading/json.h"

namespace oracle {

// The values between layers: one tensor, or the flattened tuple that a recurrent layer returns.
using Tensors = std::vector<at::Tensor>;

struct Layer {
  std::shared_ptr<torch::nn::Module> module;  // null for a layer without parameters
  std::function<Tensors(const Tensors&)> forward;
};

// The `args` object of a layer. `finish` throws NeedsFeature for an argument that nobody asked for, so that none is ignored.
class LayerArgs {
 public:
  LayerArgs(const Json& layer, std::string type);

  const Json* find(const std::string& name);  // null members count as absent
  bool has(const std::string& name) { return find(name) != nullptr; }
  int64_t integer(const std::string& name);
  int64_t integer(const std::string& name, int64_t fallback);
  double number(const std::string& name, double fallback);
  bool boolean(const std::string& name, bool fallback);
  // `n` integers, given as a list or as one for all.
  std::vector<int64_t> sizes(const std::string& name, size_t n);
  std::vector<int64_t> sizes(const std::string& name, size_t n, int64_t fallback);
  void finish() const;

 private:
  const Json* args_;
  std::string type_;
  std::set<std::string> asked_;
};

using LayerFactory = std::function<Layer(LayerArgs&)>;
using LayerRegistry = std::map<std::string, LayerFactory>;

// The layer types, by the names that PyTorch gives them. A new type is one more entry.
const LayerRegistry& layer_registry();

void add_weighted_layers(LayerRegistry& registry);
void add_normalization_layers(LayerRegistry& registry);
void add_activation_layers(LayerRegistry& registry);
void add_pooling_layers(LayerRegistry& registry);
void add_sequence_layers(LayerRegistry& registry);

// A layer of a module holder whose forward takes and returns one tensor.
template <class Holder>
Layer tensor_layer(Holder holder) {
  return {holder.ptr(), [holder](const Tensors& x) mutable { return Tensors{holder->forward(x.at(0))}; }};
}

}  // namespace oracle
