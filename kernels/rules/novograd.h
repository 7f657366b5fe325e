#pragma once

#include "kernels/rules/moments.h"

namespace apex::kernels::rules {

// The running norm that NovoGrad keeps for each tensor in place of a mean of squares: blended as squares for L2 norms, as they
// are for the largest magnitude. The weights are beta2 and 1 - beta2.
HD inline float blended_norm(float running, float norm, float running_weight, float norm_weight, bool l2) {
  const float kept = multiply(running_weight, running);
  const float joined = multiply(norm_weight, norm);
  return l2 ? square_root(add(multiply(kept, running), multiply(joined, norm))) : add(kept, joined);
}

// NovoGrad: gradients are divided by their tensor's norm before they join the mean (regularise_inside: and weight decay joins
// it too), or the mean is divided after it was taken.
struct NovoGrad {
  using Real = float;
  static constexpr Use kUses[] = {Use::read, Use::update, Use::update};
  static constexpr size_t kSums = 0;

  float grad_scale, lr, weight_decay;
  float decay, weight;  // beta1, and 1 - beta1 or 1
  Divisor correction;   // 1 - beta1^step, or 1
  Divisor norm;         // of the tensor, bias-corrected, plus eps
  bool regularise_inside;

  template <class V>
  HD void operator()(V grad, V& param, V& exp_avg) const {
    V unscaled = multiply(grad, V(grad_scale));
    if (regularise_inside) unscaled = decayed(divide(unscaled, norm), param);
    exp_avg = add(multiply(V(decay), exp_avg), multiply(V(weight), unscaled));
    V step = corrected(exp_avg, correction);
    if (!regularise_inside) step = decayed(divide(step, norm), param);
    param = add(param, multiply(V(-lr), step));
  }

 private:
  template <class V>
  HD V decayed(V step, V param) const {
    return weight_decay != 0 ? add(step, multiply(V(weight_decay), param)) : step;
  }
};

}  // namespace apex::kernels::rules
