#include "kernels/optimizer_rules.h"

namespace apex::kernels {
namespace {

template <class Settings>
Settings with_step(const StepControl& control) {
  Settings settings{};
  settings.grad_scale = control.grad_scale;
  settings.lr = control.lr;
  settings.weight_decay = control.weight_decay;
  return settings;
}

template <class Settings>
Settings with_moments(const MomentControl& control) {
  Settings settings = with_step<Settings>(control);
  settings.beta1 = control.beta1;
  settings.beta2 = control.beta2;
  settings.eps = control.eps;
  settings.step = control.step;
  settings.bias_correction = control.bias_correction;
  return settings;
}

}  // namespace

rules::SgdSettings settings_of(const SgdControl& control) {
  auto settings = with_step<rules::SgdSettings>(control);
  settings.momentum = control.momentum;
  settings.dampening = control.dampening;
  settings.nesterov = control.nesterov;
  settings.first_run = control.first_run;
  settings.weight_decay_after_momentum = control.weight_decay_after_momentum;
  return settings;
}

rules::AdamSettings settings_of(const AdamControl& control) {
  auto settings = with_moments<rules::AdamSettings>(control);
  settings.adam_w_mode = control.adam_w_mode;
  return settings;
}

rules::AdagradSettings settings_of(const AdagradControl& control) {
  auto settings = with_step<rules::AdagradSettings>(control);
  settings.eps = control.eps;
  settings.adagrad_w_mode = control.adagrad_w_mode;
  return settings;
}

rules::NovoGradSettings settings_of(const NovoGradControl& control) {
  auto settings = with_moments<rules::NovoGradSettings>(control);
  settings.grad_averaging = control.grad_averaging;
  settings.reg_inside_moment = control.reg_inside_moment;
  settings.l2 = control.norm_type == NormType::l2;
  settings.first_run = control.first_run;
  return settings;
}

rules::LambSettings settings_of(const LambControl& control) {
  auto settings = with_moments<rules::LambSettings>(control);
  settings.adam_w_mode = control.adam_w_mode;
  settings.grad_averaging = control.grad_averaging;
  settings.use_nvlamb = control.use_nvlamb;
  settings.max_grad_norm = control.max_grad_norm;
  return settings;
}

rules::LarcSettings settings_of(const LarcControl& control) {
  auto settings = with_step<rules::LarcSettings>(control);
  settings.trust_coefficient = control.trust_coefficient;
  settings.eps = control.eps;
  settings.clip = control.clip;
  return settings;
}

rules::PlainSgd plain_sgd_rule(const SgdControl& control, bool half_params) {
  return rules::plain_sgd(settings_of(control), half_params);
}

rules::MomentumSgd momentum_sgd_rule(const SgdControl& control, bool half_params) {
  return rules::momentum_sgd(settings_of(control), half_params);
}

rules::Adam adam_rule(const AdamControl& control) { return rules::adam(settings_of(control)); }
rules::Adagrad adagrad_rule(const AdagradControl& control) { return rules::adagrad(settings_of(control)); }

rules::NovoGrad novograd_rule(const NovoGradControl& control, float norm) {
  return rules::novograd(settings_of(control), norm);
}

rules::LambStage1 lamb_stage_1_rule(const LambControl& control, double global_grad_norm, bool half_updates) {
  return rules::lamb_stage_1(settings_of(control), global_grad_norm, half_updates);
}

rules::LambStage2 lamb_stage_2_rule(const LambControl& control, float param_norm, float update_norm) {
  return rules::lamb_stage_2(settings_of(control), param_norm, update_norm);
}

rules::Larc larc_rule(const LarcControl& control, double param_norm, double grad_norm) {
  return rules::larc(settings_of(control), param_norm, grad_norm);
}

rules::ScaleUpdate scale_update_rule(const ScaleUpdateControl& control) {
  return {static_cast<float>(control.growth_factor), static_cast<float>(control.backoff_factor),
          static_cast<int32_t>(control.growth_interval), static_cast<int32_t>(control.hysteresis)};
}

}  // namespace apex::kernels
