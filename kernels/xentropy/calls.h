#pragma once

#include "kernels/xentropy/xentropy.h"

// What the drivers are given: allocated outputs, and at least one row and one class.
namespace apex::kernels::xentropy {

struct ForwardCall {
  at::Tensor logits;
  CrossEntropyTargets targets;
  CrossEntropy out;
};

struct BackwardCall {
  at::Tensor grad_losses, logits, log_sum_exp;
  CrossEntropyTargets targets;
  at::Tensor grad_logits;
};

}  // namespace apex::kernels::xentropy
