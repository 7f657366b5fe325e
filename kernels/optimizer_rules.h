#pragma once

#include "kernels/optimizers.h"
#include "kernels/rules/coefficients.h"
#include "kernels/rules/update_scale.h"

// Control structs as plain values, and the rules that they ask for. Tensors in a control are not looked at.
namespace apex::kernels {

rules::SgdSettings settings_of(const SgdControl& control);
rules::AdamSettings settings_of(const AdamControl& control);
rules::AdagradSettings settings_of(const AdagradControl& control);
rules::NovoGradSettings settings_of(const NovoGradControl& control);
rules::LambSettings settings_of(const LambControl& control);
rules::LarcSettings settings_of(const LarcControl& control);

// `half_params`: whether the parameters are stored in float16.
rules::PlainSgd plain_sgd_rule(const SgdControl& control, bool half_params);
rules::MomentumSgd momentum_sgd_rule(const SgdControl& control, bool half_params);
rules::Adam adam_rule(const AdamControl& control);
rules::Adagrad adagrad_rule(const AdagradControl& control);
// `norm`: the tensor's running norm.
rules::NovoGrad novograd_rule(const NovoGradControl& control, float norm);
// `global_grad_norm`: 0 where the control has none. `half_updates`: whether the updates are stored in float16.
rules::LambStage1 lamb_stage_1_rule(const LambControl& control, double global_grad_norm, bool half_updates);
rules::LambStage2 lamb_stage_2_rule(const LambControl& control, float param_norm, float update_norm);
// Norms are those of the parameter and the unscaled gradient.
rules::Larc larc_rule(const LarcControl& control, double param_norm, double grad_norm);
rules::ScaleUpdate scale_update_rule(const ScaleUpdateControl& control);

}  // namespace apex::kernels
