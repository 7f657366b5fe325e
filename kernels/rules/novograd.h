#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// The running norm that NovoGrad keeps for each tensor in place of a mean of squares: blended as squares for L2 norms, as they
// are for the largest magnitude. In float64: once per tensor.
HD inline double blended_norm(double running, double norm, double beta2, bool l2) {
  if (!l2) return beta2 * running + (1 - beta2) * norm;
  return std::sqrt(beta2 * running * running + (1 - beta2) * norm * norm);
}

// NovoGrad: gradients are divided by their tensor's norm before they join the mean (regularise_inside: and weight decay joins
// it too), or the mean is divided after it was taken.
struct NovoGrad {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, lr, weight_decay;
  float decay, weight;  // beta1, and 1 - beta1 or 1
  float correction;     // 1 / (1 - beta1^step), or 1
  float norm;           // of the tensor, bias-corrected, plus eps
  bool regularise_inside;

  template <class V>
  HD void operator()(V grad, V& param, V& exp_avg) const {
    V unscaled = multiply(grad, V(grad_scale));
    if (regularise_inside) unscaled = decayed(divide(unscaled, V(norm)), param);
    exp_avg = fma(V(decay), exp_avg, multiply(V(weight), unscaled));
    V step = multiply(exp_avg, V(correction));
    if (!regularise_inside) step = decayed(divide(step, V(norm)), param);
    param = fma(V(-lr), step, param);
  }

 private:
  template <class V>
  HD V decayed(V step, V param) const {
    return weight_decay != 0 ? fma(V(weight_decay), param, step) : step;
  }
};

}  // namespace apex::kernels::rules
