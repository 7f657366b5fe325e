#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// Running means of gradients and of their squares, and the step that they give: what Adam and LAMB have in common.
// The corrections undo that both means start at zero; they are 1 without bias correction.
struct Moments {
  float decay, weight;                // of the mean: beta1, and 1 - beta1 or 1
  float square_decay, square_weight;  // of the mean of squares: beta2 and 1 - beta2
  float correction;                   // 1 / (1 - beta1^step)
  float root_correction;              // 1 / sqrt(1 - beta2^step)
  float eps;

  // (mean * correction) / (sqrt(square) * root_correction + eps), after both took in the gradient.
  template <class V>
  HD V advance(V grad, V& mean, V& square) const {
    mean = fma(V(decay), mean, multiply(V(weight), grad));
    square = fma(multiply(V(square_weight), grad), grad, multiply(V(square_decay), square));
    return divide(multiply(mean, V(correction)), fma(square_root(square), V(root_correction), V(eps)));
  }
};

}  // namespace apex::kernels::rules
