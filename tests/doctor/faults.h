#pragma once
// Planted faults: operators and autograd functions that return their argument, with a gradient of 1. They work in FP32; in 16
// bits each breaks in its own way, forward or backward.
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace apex::test {

struct Fault {
  std::string name;
  bool backward;       ///< the pass in which it breaks
  bool needs_float16;  ///< BF16 has the range that it needs
  std::string op;      ///< what the doctor has to name
  std::function<torch::Tensor(const torch::Tensor&)> plant;
};

/// Each as an operator of a library, as an autograd function, and, where there is one, as an operator of LibTorch.
const std::vector<Fault>& faults();

}  // namespace apex::test
