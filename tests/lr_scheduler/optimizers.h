#pragma once
// Optimizers with several parameter groups, and their rates.
#include <torch/torch.h>

#include <memory>
#include <vector>

namespace apex::test {

/// An optimizer with a group for each of `rates`.
template <class Opt, class Options>
std::unique_ptr<Opt> with_rates(const std::vector<double>& rates, const Options& defaults) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : rates) {
    auto options = std::make_unique<Options>(defaults);
    options->lr(rate);
    groups.emplace_back(std::vector<torch::Tensor>{torch::ones({2, 1}, torch::requires_grad())}, std::move(options));
  }
  return std::make_unique<Opt>(groups, defaults);
}

inline std::vector<double> rates_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

/// Of an optimizer of any class, as code of LibTorch's users does it.
inline std::vector<double> rates_after(torch::optim::LRScheduler& scheduler, int64_t steps,
                                       torch::optim::Optimizer& optimizer) {
  for (int64_t i = 0; i < steps; ++i) scheduler.step();
  return rates_of(optimizer);
}

}  // namespace apex::test
