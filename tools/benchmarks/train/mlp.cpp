// Linear layers of 1024, 2048, 2048 and 10 units: only matrix products, and many parameters for the optimizer.
#include <ATen/Functions.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "network.h"

namespace bench::train {
namespace {

constexpr int64_t kMlpClasses = 10;

struct MlpSizes {
  int64_t inputs, units, batch;
};

MlpSizes mlp_sizes(bool quick) {
  if (quick) return {64, 128, 16};
  return {1024, 2048, 256};
}

Network mlp_network(bool quick) {
  using torch::nn::Linear, torch::nn::ReLU;
  const auto [inputs, units, batch] = mlp_sizes(quick);
  return Network(
      torch::nn::Sequential(Linear(inputs, units), ReLU(), Linear(units, units), ReLU(), Linear(units, kMlpClasses)));
}

Batch features(bool quick) {
  const auto [inputs, units, batch] = mlp_sizes(quick);
  return {at::randn({batch, inputs}), at::randint(kMlpClasses, {batch}, at::kLong)};
}

}  // namespace

Task mlp_task() { return {"mlp", mlp_network, features}; }

}  // namespace bench::train
