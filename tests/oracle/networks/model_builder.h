#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "tests/oracle/networks/layers.h"
#include "tests/oracle/reading/case_file.h"

namespace oracle {

// The network that a case describes: layers in sequence, each registered under its index, or a bare list of tensors p0, p1, ….
// Copyable, and a copy shares layers and parameters with the original.
class NetImpl : public torch::nn::Module {
 public:
  NetImpl() = default;
  // `model` is one entry of a case's `models`. Throws NeedsFeature for a layer type that is not in the registry.
  NetImpl(const Json& model, const CaseFile& case_file);

  at::Tensor forward(const at::Tensor& input);

  // Where a name points when the layer it belongs to is another one's second use: "3.weight" -> "0.weight".
  std::string resolve(const std::string& parameter) const;

 private:
  void add_layers(const Json& layers);
  void add_bare_parameters(const Json& model, const CaseFile& case_file);
  void load_initial_values(const std::string& model, const CaseFile& case_file);

  std::vector<Layer> layers_;
  std::vector<size_t> origin_;  // origin_[i]: the layer that owns the parameters of layer i
};
TORCH_MODULE(Net);

}  // namespace oracle
