#include <apex_cpp/lr_scheduler/detail/cycled_momentum.h>
#include <apex_cpp/optimizers.h>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>

namespace apex::lr_scheduler::detail {
namespace {

using torch::optim::OptimizerOptions;

template <class... Options>
struct Classes {};

using WithMomentum = Classes<torch::optim::SGDOptions, torch::optim::RMSpropOptions, optimizers::FusedSGDOptions,
                             optimizers::FusedLARSOptions, optimizers::MuonOptions>;
using WithBetas =
    Classes<torch::optim::AdamOptions, torch::optim::AdamWOptions, optimizers::FusedAdamOptions, optimizers::FusedLAMBOptions,
            optimizers::FusedLionOptions, optimizers::FusedNovoGradOptions, optimizers::FusedMixedPrecisionLambOptions>;

/// Calls `f` with `options` as the class of the list that it is, or derives from. Returns whether there is one.
template <class... Options, class F>
bool with_class_among(Classes<Options...>, OptimizerOptions& options, const F& f) {
  const auto try_class = [&](auto* as) {
    if (as) f(*as);
    return as != nullptr;
  };
  return (try_class(dynamic_cast<Options*>(&options)) || ...);
}

}  // namespace

std::optional<double> cycled_momentum(const OptimizerOptions& options) {
  std::optional<double> found;
  auto& mutable_options = const_cast<OptimizerOptions&>(options);  // is only read
  with_class_among(WithBetas(), mutable_options, [&](auto& as) { found = std::get<0>(as.betas()); });
  with_class_among(WithMomentum(), mutable_options, [&](auto& as) { found = as.momentum(); });
  return found;
}

void set_cycled_momentum(OptimizerOptions& options, double value) {
  with_class_among(WithBetas(), options, [&](auto& as) { std::get<0>(as.betas()) = value; });
  with_class_among(WithMomentum(), options, [&](auto& as) { as.momentum(value); });
}

}  // namespace apex::lr_scheduler::detail
