#pragma once

#include <apex_cpp/amp.h>
#include <apex_cpp/amp/cpu_fallback/cpu_16bit.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

namespace oracle {

// Runs `action` with casting on, as a program has it after `amp::initialize` at O1.
template <class Action>
auto at_O1(const apex::amp::InitializeOptions& options, Action action) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  const auto handles = apex::amp::initialize(net, optimizer, "O1", apex::amp::InitializeOptions(options).verbosity(0));
  struct Reset {
    ~Reset() { apex::amp::reset(); }
  } at_the_end;
  return action();
}

template <class Action>
auto at_O1(Action action) {
  return at_O1(apex::amp::InitializeOptions(), action);
}

// Whether float16 products compute in another way than in the recording, which is by native kernels.
inline bool computes_in_float32() {
  return apex::amp::detail::cpu_compute(apex::opt_levels::Cpu16Bit::automatic, at::kHalf).in_float32;
}

}  // namespace oracle
