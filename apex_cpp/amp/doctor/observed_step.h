#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// One operator call, or one call of an autograd function, that a step's forward pass made, with what came back to it in the
/// backward pass. Tensors are copies of the floating-point ones, in the dtype in which they were seen.
struct ObservedCall {
  std::string op;                      ///< "aten::conv2d", an overload follows a dot; the class of an autograd function
  std::string module;                  ///< path of the module whose parameter it used; empty if it used none
  bool can_be_kept = false;            ///< an operator whose result is its own: neither a view nor written in place
  std::vector<std::string> inner_ops;  ///< of an autograd function: the operators that its forward called
  int64_t order = 0;                   ///< among the step's calls
  std::vector<at::Tensor> inputs, outputs;
  std::map<size_t, at::Tensor> output_grads;  ///< gradients that came in, by the number of the output
  std::map<size_t, at::Tensor> input_grads;   ///< this call's share of the gradients that went on, by the number of the input
};

/// What one training step did, in order. Casts, views and calls without floating-point results are left out: two levels then
/// make the same calls.
struct ObservedStep {
  std::vector<ObservedCall> calls;
  std::string nonfinite_weight;  ///< a parameter that had Inf or NaN before a step other than the first; empty for none
  double loss_scale = 1;
};

}  // namespace apex::amp::detail
