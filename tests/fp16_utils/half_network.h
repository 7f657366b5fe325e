#pragma once
// A small network in 16 bits and its training data, for the tests of FP16_Optimizer.
#include <apex_cpp/fp16_utils.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace apex::test {

using fp16_utils::DynamicLossArgs;
using fp16_utils::FP16_Optimizer;
using fp16_utils::FP16_OptimizerOptions;

/// Two linear layers with a layer norm in float32 between them.
struct HalfNetworkForTests {
  explicit HalfNetworkForTests(torch::Dtype dtype = torch::kHalf) : type(dtype) {
    torch::manual_seed(11);
    first = torch::nn::Linear(5, 4);
    norm = torch::nn::LayerNorm(torch::nn::LayerNormOptions({4}));
    second = torch::nn::Linear(4, 2);
    first->to(type);
    second->to(type);
  }
  std::vector<torch::Tensor> parameters() const {
    std::vector<torch::Tensor> all;
    for (const torch::nn::Module* module :
         {static_cast<const torch::nn::Module*>(first.ptr().get()), static_cast<const torch::nn::Module*>(norm.ptr().get()),
          static_cast<const torch::nn::Module*>(second.ptr().get())}) {
      const auto own = module->parameters();
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }
  torch::Tensor loss() {
    const auto x = torch::linspace(-1, 1, 15).reshape({3, 5}).to(type);
    const auto hidden = norm->forward(first->forward(x).to(torch::kFloat)).to(type);
    return torch::mse_loss(second->forward(hidden).to(torch::kFloat), torch::ones({3, 2}));
  }

  torch::Dtype type;
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

inline torch::optim::SGD sgd_over(const std::vector<torch::Tensor>& params) {
  return torch::optim::SGD(params, torch::optim::SGDOptions(0.125).momentum(0.5));
}
inline FP16_OptimizerOptions quiet() { return FP16_OptimizerOptions().verbose(false); }
inline FP16_OptimizerOptions dynamic(double init_scale, int64_t window = 2000) {
  return quiet().dynamic_loss_scale(true).dynamic_loss_args(DynamicLossArgs().init_scale(init_scale).scale_window(window));
}

inline std::vector<torch::Tensor> copies(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> values;
  for (const auto& tensor : tensors) values.push_back(tensor.detach().clone());
  return values;
}
inline bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) same = torch::equal(a[i], b[i]);
  return same;
}

}  // namespace apex::test
