#include "kernels/optimizer_rules.h"

#include <cmath>

namespace apex::kernels {
namespace {

float as_float(double value) { return static_cast<float>(value); }

// 1 - beta^step
double bias(const MomentControl& control, double beta) {
  return control.bias_correction ? 1 - std::pow(beta, static_cast<double>(control.step)) : 1.0;
}

float mean_weight(const MomentControl& control, bool averaging) { return as_float(averaging ? 1 - control.beta1 : 1.0); }

rules::Moments moments(const MomentControl& control, bool averaging) {
  return {as_float(control.beta1),
          mean_weight(control, averaging),
          as_float(control.beta2),
          as_float(1 - control.beta2),
          as_float(1 / bias(control, control.beta1)),
          as_float(1 / std::sqrt(bias(control, control.beta2))),
          as_float(control.eps)};
}

}  // namespace

rules::PlainSgd plain_sgd_rule(const SgdControl& control) {
  return {as_float(control.grad_scale), as_float(control.lr), as_float(control.weight_decay)};
}

rules::MomentumSgd momentum_sgd_rule(const SgdControl& control) {
  return {as_float(control.grad_scale),
          as_float(control.lr),
          as_float(control.weight_decay),
          as_float(control.momentum),
          as_float(1 - control.dampening),
          control.nesterov,
          control.first_run,
          control.weight_decay_after_momentum};
}

rules::Adam adam_rule(const AdamControl& control) {
  return {as_float(control.grad_scale), as_float(control.lr), as_float(control.weight_decay), control.adam_w_mode,
          moments(control, /*averaging=*/true)};
}

rules::Adagrad adagrad_rule(const AdagradControl& control) {
  return {as_float(control.grad_scale), as_float(control.lr), as_float(control.weight_decay), as_float(control.eps),
          control.adagrad_w_mode};
}

rules::NovoGrad novograd_rule(const NovoGradControl& control, double norm) {
  return {as_float(control.grad_scale),
          as_float(control.lr),
          as_float(control.weight_decay),
          as_float(control.beta1),
          mean_weight(control, control.grad_averaging),
          as_float(1 / bias(control, control.beta1)),
          as_float(norm / std::sqrt(bias(control, control.beta2)) + control.eps),
          control.reg_inside_moment};
}

rules::LambStage1 lamb_stage_1_rule(const LambControl& control, double global_grad_norm) {
  const bool clips = control.max_grad_norm > 0 && global_grad_norm > control.max_grad_norm;
  const double clip = clips ? global_grad_norm / control.max_grad_norm : 1.0;
  return {as_float(control.grad_scale / clip), as_float(control.weight_decay), control.adam_w_mode,
          moments(control, control.grad_averaging)};
}

rules::LambStage2 lamb_stage_2_rule(const LambControl& control, double param_norm, double update_norm) {
  const bool adapts = control.use_nvlamb || control.weight_decay != 0;
  return {as_float(adapts ? rules::trusted_rate(control.lr, param_norm, update_norm) : control.lr)};
}

rules::Larc larc_rule(const LarcControl& control, double param_norm, double grad_norm) {
  if (param_norm == 0 || grad_norm == 0) return {as_float(control.grad_scale), 0.0f, 1.0f};
  const double rate = rules::larc_rate(control.trust_coefficient, param_norm, grad_norm, control.weight_decay, control.eps,
                                       control.lr, control.clip);
  return {as_float(control.grad_scale), as_float(control.weight_decay), as_float(rate)};
}

rules::ScaleUpdate scale_update_rule(const ScaleUpdateControl& control) {
  return {as_float(control.growth_factor), as_float(control.backoff_factor), static_cast<int32_t>(control.growth_interval),
          static_cast<int32_t>(control.hysteresis)};
}

}  // namespace apex::kernels
