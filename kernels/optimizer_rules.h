#pragma once

#include "kernels/optimizers.h"
#include "kernels/rules/adagrad.h"
#include "kernels/rules/adam.h"
#include "kernels/rules/lamb.h"
#include "kernels/rules/larc.h"
#include "kernels/rules/novograd.h"
#include "kernels/rules/sgd.h"
#include "kernels/rules/update_scale.h"

// The rules that control structs ask for: coefficients are computed in float64 and rounded to float32 once.
namespace apex::kernels {

rules::PlainSgd plain_sgd_rule(const SgdControl& control);
rules::MomentumSgd momentum_sgd_rule(const SgdControl& control);
rules::Adam adam_rule(const AdamControl& control);
rules::Adagrad adagrad_rule(const AdagradControl& control);
// `norm`: the tensor's running norm.
rules::NovoGrad novograd_rule(const NovoGradControl& control, double norm);
// `global_grad_norm`: 0 where the control has none.
rules::LambStage1 lamb_stage_1_rule(const LambControl& control, double global_grad_norm);
rules::LambStage2 lamb_stage_2_rule(const LambControl& control, double param_norm, double update_norm);
// Norms are those of the parameter and the unscaled gradient.
rules::Larc larc_rule(const LarcControl& control, double param_norm, double grad_norm);
rules::ScaleUpdate scale_update_rule(const ScaleUpdateControl& control);

}  // namespace apex::kernels
