#pragma once

#include "kernels/rules/arithmetic.h"
#include "kernels/rules/rule.h"
#include "kernels/rules/settings.h"

namespace apex::kernels::rules {

// Whether this processor multiplies vectors by a reciprocal faster than it divides them.
bool products_are_quicker();

// A divisor of many values. On processors whose vector division is slow, and on GPUs, the drivers compute a quotient by four
// products instead, with the same bits. It starts from an estimate within one unit in the last place. One step with the exact
// remainder and the rounded reciprocal then gives the correctly rounded quotient (P. Markstein, Computation of elementary
// functions on the IBM RISC System/6000 processor, IBM J. Res. Dev. 34, 1990).
struct Divisor {
  // Within these magnitudes (and for a dividend of +0) the quotient is normal and the remainder is exact.
  static constexpr float kSmallest = 0x1p-24f, kLargest = 0x1p24f;
  static constexpr float kSmallestDividend = 0x1p-98f, kLargestDividend = 0x1p98f;

  float value;
  float reciprocal, rest;  // their sum is 1 / value; both 0: divide() divides

  HD Divisor(float divisor) : value(divisor), reciprocal(0), rest(0) {
#ifdef __CUDA_ARCH__
    take_products();
#else
    if (products_are_quicker()) take_products();
#endif
  }

  HD void take_products() {
    if (value < kSmallest || value > kLargest || value != value) return;
    const double exact = 1.0 / static_cast<double>(value);
    reciprocal = static_cast<float>(exact);
    rest = static_cast<float>(exact - static_cast<double>(reciprocal));
  }
};

HD inline float divide(float a, const Divisor& by) { return divide(a, by.value); }
HD inline double divide(double a, const Divisor& by) { return divide(a, static_cast<double>(by.value)); }

// mean / correction, without the division if the correction is 1.
template <class V>
HD V corrected(V mean, const Divisor& correction) {
  return correction.value == 1 ? mean : divide(mean, correction);
}

// Running means of the gradients and of their squares, and the step computed from them; shared by Adam and LAMB. The
// corrections undo that both means start at zero. They are 1 without bias correction, and approach 1 with it.
struct Moments {
  float decay, weight;                // of the mean: beta1, and 1 - beta1 or 1
  float square_decay, square_weight;  // of the mean of squares: beta2 and 1 - beta2
  Divisor correction;                 // 1 - beta1^step
  Divisor square_correction;          // 1 - beta2^step
  float eps;

  // Adds the gradient to both means.
  template <class V>
  HD void add_gradient(V grad, V& mean, V& square) const {
    mean = add(multiply(V(decay), mean), multiply(V(weight), grad));
    square = add(multiply(V(square_decay), square), multiply(multiply(V(square_weight), grad), grad));
  }

  // sqrt(square / square_correction)
  template <class V>
  HD V corrected_root(V square) const {
    return square_root(corrected(square, square_correction));
  }

  // (mean / correction) / (root + eps), for the corrected root of the mean of squares.
  template <class V>
  HD V step_along(V mean, V root) const {
    return divide(corrected(mean, correction), add(root, V(eps)));
  }
};

// 1 - beta^step: the total weight in a running mean that started at zero. 1 without bias correction.
HD inline double bias(const MomentSettings& settings, double beta) {
  return settings.bias_correction ? subtract(1.0, power(as_float(beta), settings.step)) : 1.0;
}

// The weight of a gradient in its mean.
HD inline float mean_weight(const MomentSettings& settings, bool grad_averaging) {
  return grad_averaging ? complement(settings.beta1) : 1.0f;
}

HD inline Moments moments(const MomentSettings& settings, bool grad_averaging) {
  return {as_float(settings.beta1),   mean_weight(settings, grad_averaging),    as_float(settings.beta2),
          complement(settings.beta2), as_float(bias(settings, settings.beta1)), as_float(bias(settings, settings.beta2)),
          as_float(settings.eps)};
}

}  // namespace apex::kernels::rules
