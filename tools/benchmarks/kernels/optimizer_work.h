#pragma once
// What the benchmarks of the optimizers' kernels share.
#include "compare.h"

namespace bench::kernels {

/// What the tensors of an update are stored in.
struct Mix {
  const char* name;
  at::ScalarType grads, params;  // states are stored like params
  bool copies;                   // to model parameters stored like grads
};

/// The lists of one update; those that an optimizer has no use for are empty.
struct Lists {
  Tensors grads, params, first, second, updates, copies;
  bool uniform;  // one dtype for all: what torch's own optimizers ask for
};

/// An optimizer: how many states a parameter has, and the ways to make one step.
struct OptimizerWork {
  const char* name;
  int states;
  bool needs_updates;  // a list as large as the parameters for what lies between two passes
  Comparison (*comparison)(const Lists&);
};

Comparison sgd(const Lists& lists);
Comparison adam(const Lists& lists);
Comparison adagrad(const Lists& lists);
Comparison novograd(const Lists& lists);
Comparison lamb(const Lists& lists);

constexpr double kLr = 1e-4, kDecay = 0.01, kMomentum = 0.9, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8;
constexpr int kStep = 10;

/// One element for each tensor, as torch's fused optimizers count steps.
Tensors step_counts(const Lists& lists);
/// The lists' parameters with their gradients, for an optimizer of torch::optim.
Tensors with_grads(const Lists& lists);
/// The pass that updates: reads gradients, updates parameters and `states`, writes copies.
PassTraffic update_pass(const Lists& lists, const std::vector<Tensors>& states);

}  // namespace bench::kernels
