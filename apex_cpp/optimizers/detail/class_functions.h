#pragma once

#include <torch/optim/serialize.h>

#include <memory>
#include <typeinfo>

#include <apex_cpp/amp/handles/amp_optimizer.h>

// What every fused optimizer class implements alike. For their source files.
namespace apex::optimizers::detail {

template <class Opt>
std::unique_ptr<torch::optim::Optimizer> make_amp_handle(Opt& optimizer, const std::shared_ptr<amp::detail::Session>& session) {
  TORCH_CHECK_TYPE(typeid(optimizer) == typeid(Opt), "amp::initialize was given a pointer to ",
                   c10::demangle(typeid(optimizer).name()), ", which is derived from ", c10::demangle(typeid(Opt).name()),
                   ". Pass an optimizer of your own by its own type, not as a torch::optim::Optimizer.");
  return std::make_unique<amp::AmpOptimizer<Opt>>(std::move(optimizer), session);
}

inline void check_not_negative(const char* optimizer, const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0, optimizer, ": ", name, " must not be negative, got ", value, ".");
}

template <class Options>
void check_moments(const char* optimizer, const Options& options) {
  check_not_negative(optimizer, "lr", options.lr());
  check_not_negative(optimizer, "eps", options.eps());
  check_not_negative(optimizer, "weight_decay", options.weight_decay());
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, optimizer, ": betas must be in [0, 1), got (", beta1,
                    ", ", beta2, ").");
}

template <class Options>
void check_no_amsgrad(const char* optimizer, const Options& options) {
  TORCH_CHECK(!options.amsgrad(), optimizer, " does not support the AMSGrad variant: leave amsgrad false.");
}

// The options of a group as their own class.
template <class Options>
const Options& options_of(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const Options&>(group.options());
}

}  // namespace apex::optimizers::detail
