#pragma once
// The optimizers that amp wraps, for typed tests, with options that give each of them state.
#include <torch/torch.h>

#include "tests/amp/support.h"

namespace apex::test {

using Params = std::vector<torch::Tensor>;
/// Representable in float16: at O3 the default of 1e-8 is a division by zero.
constexpr double kEps = 1e-3;

struct SgdMomentum {
  using Optimizer = torch::optim::SGD;
  static Optimizer make(Params p) { return Optimizer(std::move(p), torch::optim::SGDOptions(0.1).momentum(0.9)); }
};
struct Adam {
  using Optimizer = torch::optim::Adam;
  static Optimizer make(Params p) { return Optimizer(std::move(p), torch::optim::AdamOptions(0.01).eps(kEps).amsgrad(true)); }
};
struct AdamW {
  using Optimizer = torch::optim::AdamW;
  static Optimizer make(Params p) { return Optimizer(std::move(p), torch::optim::AdamWOptions(0.01).eps(kEps)); }
};
struct RmsProp {
  using Optimizer = torch::optim::RMSprop;
  static Optimizer make(Params p) {
    return Optimizer(std::move(p), torch::optim::RMSpropOptions(0.01).eps(kEps).momentum(0.5));
  }
};
struct Adagrad {
  using Optimizer = torch::optim::Adagrad;
  static Optimizer make(Params p) { return Optimizer(std::move(p), torch::optim::AdagradOptions(0.05).eps(kEps)); }
};
using AllOptimizers = ::testing::Types<SgdMomentum, Adam, AdamW, RmsProp, Adagrad>;

/// One training step on `input`; without the optimizer's step if `step` is false.
template <class Net, class Opt>
void train_step(Net& net, Opt& opt, const torch::Tensor& input, bool step = true) {
  opt.zero_grad();
  { amp::scale_loss(net->forward(input).square().mean(), opt).backward(); }
  if (step) opt.step();
}

}  // namespace apex::test
