// The modules of the table of O1 casts.
#include <ATen/Functions.h>
#include <torch/enum.h>
#include <torch/nn/modules.h>
#include <torch/utils.h>

#include <map>

#include "tests/oracle/tables/o1_casts_calls.h"
#include "tests/oracle/verdict/report.h"

namespace oracle {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using Tensors = CastCall::Tensors;
using Runner = std::function<ModuleOutcome(at::ScalarType)>;

constexpr int64_t kFeatures = 4;
constexpr int64_t kHidden = 3;

Tensor input_of(at::IntArrayRef sizes, at::ScalarType type) {
  return at::linspace(0.1, 0.9, c10::multiply_integers(sizes), at::kFloat).view(sizes).to(type);
}

Tensors flat(const Tensor& output) { return {output}; }
Tensors flat(const std::tuple<Tensor, Tensor>& output) { return {std::get<0>(output), std::get<1>(output)}; }
Tensors flat(const std::tuple<Tensor, std::tuple<Tensor, Tensor>>& output) {
  const auto& [values, state] = output;
  return {values, std::get<0>(state), std::get<1>(state)};
}

template <class Holder>
Runner module_on(Holder module, std::vector<int64_t> sizes) {
  return [module, sizes](at::ScalarType type) mutable {
    return ModuleOutcome{flat(module->forward(input_of(sizes, type))), module->parameters()};
  };
}

Runner attention() {
  nn::MultiheadAttention module(nn::MultiheadAttentionOptions(kFeatures, 2));
  return [module](at::ScalarType type) mutable {
    const Tensor x = input_of({5, 2, kFeatures}, type);
    return ModuleOutcome{flat(module->forward(x, x, x)), module->parameters()};
  };
}

Runner bilinear() {
  nn::Bilinear module(kFeatures, kFeatures, kHidden);
  return [module](at::ScalarType type) mutable {
    const Tensor x = input_of({5, kFeatures}, type);
    return ModuleOutcome{{module->forward(x, x)}, module->parameters()};
  };
}

const std::vector<int64_t> kSequence{5, 2, kFeatures};
const std::vector<int64_t> kBatch{2, kFeatures};
const std::vector<int64_t> kImages{2, kFeatures, 6, 6};

// Created at every call, with FP32 weights.
const std::map<std::string, std::function<Runner()>>& modules() {
  static const std::map<std::string, std::function<Runner()>> kModules = {
      {"LSTM", [] { return module_on(nn::LSTM(kFeatures, kHidden), kSequence); }},
      {"GRU", [] { return module_on(nn::GRU(kFeatures, kHidden), kSequence); }},
      {"RNN(tanh)", [] { return module_on(nn::RNN(kFeatures, kHidden), kSequence); }},
      {"RNN(relu)",
       [] { return module_on(nn::RNN(nn::RNNOptions(kFeatures, kHidden).nonlinearity(torch::kReLU)), kSequence); }},
      {"LSTMCell", [] { return module_on(nn::LSTMCell(kFeatures, kHidden), kBatch); }},
      {"GRUCell", [] { return module_on(nn::GRUCell(kFeatures, kHidden), kBatch); }},
      {"RNNCell(tanh)", [] { return module_on(nn::RNNCell(kFeatures, kHidden), kBatch); }},
      {"RNNCell(relu)",
       [] { return module_on(nn::RNNCell(nn::RNNCellOptions(kFeatures, kHidden).nonlinearity(torch::kReLU)), kBatch); }},
      {"Linear", [] { return module_on(nn::Linear(kFeatures, kHidden), kBatch); }},
      {"Conv2d", [] { return module_on(nn::Conv2d(kFeatures, kHidden, 3), kImages); }},
      {"BatchNorm2d", [] { return module_on(nn::BatchNorm2d(kFeatures), kImages); }},
      {"LayerNorm", [] { return module_on(nn::LayerNorm(nn::LayerNormOptions({kFeatures})), kBatch); }},
      {"GroupNorm", [] { return module_on(nn::GroupNorm(2, kFeatures), kImages); }},
      {"PReLU", [] { return module_on(nn::PReLU(), kBatch); }},
      {"ReLU", [] { return module_on(nn::ReLU(), kBatch); }},
      {"Softmax", [] { return module_on(nn::Softmax(1), kBatch); }},
      {"Sigmoid", [] { return module_on(nn::Sigmoid(), kBatch); }},
      {"Bilinear", bilinear},
      {"MultiheadAttention", attention},
      {"Dropout", [] { return module_on(nn::Dropout(), kBatch); }},
      {"MaxPool2d", [] { return module_on(nn::MaxPool2d(2), kImages); }},
  };
  return kModules;
}

}  // namespace

ModuleOutcome run_cast_module(const std::string& name, at::ScalarType input) {
  const auto found = modules().find(name);
  if (found == modules().end()) throw NeedsFeature("module " + name);
  torch::manual_seed(0);
  return found->second()(input);
}

}  // namespace oracle
