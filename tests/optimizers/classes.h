#pragma once

#include <apex_cpp/optimizers.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

// The classes as test parameters.
namespace test {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

// The options type of a class.
template <class Opt>
struct OptionsOf {
  using type = decltype(options_of(static_cast<const Opt*>(nullptr)));
};

// An optimizer that can step: the schedule-free one begins in eval mode.
template <class Opt, class Options>
OptimizerPtr ready_to_train(std::vector<at::Tensor> params, const Options& options) {
  auto optimizer = std::make_unique<Opt>(std::move(params), options);
  if constexpr (std::is_same_v<Opt, apex::optimizers::FusedScheduleFreeAdamW>) optimizer->train();
  return optimizer;
}

struct OptimizerClass {
  std::string name;
  // With options that make every part of the formula take effect.
  std::function<OptimizerPtr(std::vector<at::Tensor> params, bool materialize_master_grads)> make;
};

const std::vector<OptimizerClass>& optimizer_classes();
std::string name_of_class(const ::testing::TestParamInfo<OptimizerClass>& test);

inline OptimizerPtr make(const OptimizerClass& of, std::vector<at::Tensor> params) { return of.make(std::move(params), true); }

}  // namespace test
