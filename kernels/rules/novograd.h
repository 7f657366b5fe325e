#pragma once

#include "kernels/rules/moments.h"

namespace apex::kernels::rules {

// The values are Apex's norm_type.
enum class NormType { inf = 0, l2 = 2 };

struct NovoGradSettings : MomentSettings {
  bool grad_averaging = true;
  bool reg_inside_moment = false;
  NormType norm_type = NormType::l2;
  bool first_run = false;  // the running norms hold nothing yet and become the norms of these gradients
};

// The running norm that NovoGrad keeps for each tensor in place of a mean of squares. L2 norms are blended as squares, largest
// magnitudes as they are. The weights are beta2 and 1 - beta2.
HD inline float blended_norm(float running, float norm, float running_weight, float norm_weight, bool l2) {
  const float kept = multiply(running_weight, running);
  const float joined = multiply(norm_weight, norm);
  return l2 ? square_root(add(multiply(kept, running), multiply(joined, norm))) : add(kept, joined);
}

// The running norm after this step. `norm`: of the tensor's gradient after grad_scale.
HD inline float next_norm(const NovoGradSettings& settings, float running, float norm) {
  const float kept = as_float(settings.beta2), joined = complement(settings.beta2);
  return settings.first_run ? norm : blended_norm(running, norm, kept, joined, settings.norm_type == NormType::l2);
}

// NovoGrad. With `regularise_inside` the gradient is divided by the tensor's norm and weight decay is added before the mean
// takes it in. Otherwise the mean is divided, and decayed, after it took in the plain gradient.
struct NovoGrad {
  using Real = float;
  static constexpr bool kDivides = true;
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

// `norm`: the tensor's running norm after this step.
HD inline NovoGrad novograd(const NovoGradSettings& settings, float norm) {
  return {as_float(settings.grad_scale),
          as_float(settings.lr),
          as_float(settings.weight_decay),
          as_float(settings.beta1),
          mean_weight(settings, settings.grad_averaging),
          as_float(bias(settings, settings.beta1)),
          add(divide(norm, as_float(square_root(bias(settings, settings.beta2)))), as_float(settings.eps)),
          settings.reg_inside_moment};
}

}  // namespace apex::kernels::rules
