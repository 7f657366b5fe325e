#pragma once

#include "kernels/rules/divisor.h"
#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// mean / correction, without the division where it would change nothing.
template <class V>
HD V corrected(V mean, const Divisor& correction) {
  return correction.value == 1 ? mean : divide(mean, correction);
}

// Running means of gradients and of their squares, and the step that they give: what Adam and LAMB have in common.
// The corrections undo that both means start at zero; they are 1 without bias correction, and soon with it.
struct Moments {
  float decay, weight;                // of the mean: beta1, and 1 - beta1 or 1
  float square_decay, square_weight;  // of the mean of squares: beta2 and 1 - beta2
  Divisor correction;                 // 1 - beta1^step
  Divisor square_correction;          // 1 - beta2^step
  float eps;

  // (mean / correction) / (sqrt(square / square_correction) + eps), after both took in the gradient.
  template <class V>
  HD V advance(V grad, V& mean, V& square) const {
    mean = add(multiply(V(decay), mean), multiply(V(weight), grad));
    square = add(multiply(V(square_decay), square), multiply(multiply(V(square_weight), grad), grad));
    const V root = square_root(corrected(square, square_correction));
    return divide(corrected(mean, correction), add(root, V(eps)));
  }
};

}  // namespace apex::kernels::rules
