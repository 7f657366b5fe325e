#pragma once

#include <torch/optim/serialize.h>

#include <memory>
#include <string>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/optimizers/options_rules.h>

// What every fused optimizer class implements alike. For their source files.
namespace apex::optimizers::detail {

template <class Opt>
std::unique_ptr<torch::optim::Optimizer> make_amp_handle(Opt& optimizer, const std::shared_ptr<amp::detail::Session>& session) {
  return std::make_unique<amp::AmpOptimizer<Opt>>(std::move(optimizer), session);
}

// `owner` has the options: the optimizer, or one of its groups.
inline void check_not_negative(const std::string& owner, const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0, owner, ": ", name, " must not be negative, got ", value, ".");
}

template <class Options>
void check_moments(const std::string& owner, const Options& options) {
  check_not_negative(owner, "lr", options.lr());
  check_not_negative(owner, "eps", options.eps());
  check_not_negative(owner, "weight_decay", options.weight_decay());
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, owner, ": betas must be in [0, 1), got (", beta1, ", ",
                    beta2, ").");
}

template <class Options>
void check_no_amsgrad(const std::string& owner, const Options& options) {
  TORCH_CHECK(!options.amsgrad(), owner, " does not support the AMSGrad variant: leave amsgrad false.");
}

/// The rules of a class whose options are `Options`, with values that `check` lets through.
template <class Options, void (*check)(const std::string&, const Options&)>
OptionsRules options_rules(const char* optimizer) {
  using torch::optim::OptimizerOptions;
  return {optimizer, [](const OptimizerOptions& options) { return dynamic_cast<const Options*>(&options) != nullptr; },
          [](const std::string& owner, const OptimizerOptions& options) { check(owner, static_cast<const Options&>(options)); },
          [](OptimizerOptions& to, const OptimizerOptions& from) {
            static_cast<Options&>(to) = static_cast<const Options&>(from);
          }};
}

// The options of a group as their own class, which a step has looked at.
template <class Options>
const Options& options_of(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const Options&>(group.options());
}

}  // namespace apex::optimizers::detail
