#pragma once
// Helpers shared by the optimizer kernels' benchmarks.
#include "compare.h"

namespace bench::kernels {

/// The dtypes of an update.
struct Mix {
  const char* name;
  at::ScalarType grads, params;  // states have the dtype of params
  bool copies;                   // writes model parameters with the dtype of grads
};

/// The tensor lists of one update. Lists that an optimizer does not use are empty.
struct Lists {
  Tensors grads, params, first, second, updates, copies;
  bool uniform;  // all lists have one dtype, as torch's own optimizers require
};

/// An optimizer: its states per parameter, and the implementations of a step.
struct OptimizerWork {
  const char* name;
  int states;
  bool needs_updates;  // needs a scratch list as large as the parameters between its two passes
  Comparison (*comparison)(const Lists&);
};

Comparison sgd(const Lists& lists);
Comparison adam(const Lists& lists);
Comparison adagrad(const Lists& lists);
Comparison novograd(const Lists& lists);
Comparison lamb(const Lists& lists);

constexpr double kLr = 1e-4, kDecay = 0.01, kMomentum = 0.9, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8;
constexpr int kStep = 10;

/// One tensor of one element per parameter, torch's fused optimizers' step counts.
Tensors step_counts(const Lists& lists);
/// The parameters with their gradients set, for an optimizer of torch::optim.
Tensors with_grads(const Lists& lists);
/// The traffic of the update pass: reads gradients, updates parameters and `states`, writes copies.
PassTraffic update_pass(const Lists& lists, const std::vector<Tensors>& states);

}  // namespace bench::kernels
