#pragma once
// Where gradients are at the step of an optimizer with masters.
#include <apex_cpp/optimizers/fused_sgd.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <tuple>

namespace apex::test {

enum class GradsIn { torch_optimizer, masters, model };
/// Combined with an opt level.
using MastersCase = std::tuple<const char*, GradsIn>;

inline auto every_masters_case() {
  return ::testing::Combine(::testing::Values("O2", "O5"),
                            ::testing::Values(GradsIn::torch_optimizer, GradsIn::masters, GradsIn::model));
}

inline std::unique_ptr<torch::optim::Optimizer> make_sgd(const torch::nn::Module& model, GradsIn where, double rate,
                                                         double momentum = 0) {
  if (where == GradsIn::torch_optimizer)
    return std::make_unique<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(rate).momentum(momentum));
  auto options = optimizers::FusedSGDOptions(rate).momentum(momentum).materialize_master_grads(where == GradsIn::masters);
  return std::make_unique<optimizers::FusedSGD>(model.parameters(), options);
}

}  // namespace apex::test
