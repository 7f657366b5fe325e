#pragma once
// Gradients of the integer model, in one process and over all ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/distributed/ddp_models.h"

namespace apex::testing {

inline std::vector<torch::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& param : module.parameters()) gradients.push_back(param.grad().clone());
  return gradients;
}

// The gradients of one process with the joined batch. The loss is a sum over samples, so they are sums over ranks.
inline std::vector<torch::Tensor> joined_gradients(int pass = 0) {
  WholeNumbers net;
  net(joined_batch(pass)).sum().backward();
  return gradients_of(*net);
}

inline void expect_equal(const std::vector<torch::Tensor>& actual, const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i << ": " << actual[i];
}

// Computed as the reducer computes it: the sum times 1 / ranks in float32.
inline std::vector<torch::Tensor> mean_of(std::vector<torch::Tensor> sums) {
  for (torch::Tensor& sum : sums) sum = sum * (1.0 / world_size());
  return sums;
}

}  // namespace apex::testing
