#include "kernels/cpu/optimizers.h"

#include <cmath>

#include "kernels/cpu/row_sums.h"
#include "kernels/optimizer_rules.h"

namespace apex::kernels::cpu {
namespace {

// In all rules that update parameters they are the second value, in LAMB's first stage updates are the last.
constexpr size_t kParam = 1, kUpdate = 4;

void write_norms(const plan::Group& group, const std::vector<double>& squares, const at::Tensor& norms) {
  for (size_t row = 0; row < squares.size(); ++row) {
    norms.mutable_data_ptr<float>()[group.rows[row].index] = rules::root_of_sum(squares[row]);
  }
}

}  // namespace

void sgd(const plan::Group& group, const SgdControl& control, bool copies) {
  const bool half_params = group.dtypes[kParam] == at::kHalf;
  control.momentum == 0 ? void(run_pass(group, plain_sgd_rule(control, half_params), copies))
                        : void(run_pass(group, momentum_sgd_rule(control, half_params), copies));
}

void adam(const plan::Group& group, const AdamControl& control, bool copies) { run_pass(group, adam_rule(control), copies); }

void adagrad(const plan::Group& group, const AdagradControl& control, bool copies) {
  run_pass(group, adagrad_rule(control), copies);
}

void novograd(const plan::Group& group, const NovoGradControl& control, const float* norms, bool copies) {
  const auto rule_of = [&](const plan::TensorRow& row) { return novograd_rule(control, norms[row.index]); };
  run_pass<rules::NovoGrad>(group, rule_of, copies);
}

void lamb_stage_1(const plan::Group& group, const LambControl& control, const LambNorms& norms) {
  const bool half_updates = group.dtypes[kUpdate] == at::kHalf;
  const double global_norm = control.global_grad_norm.defined() ? control.global_grad_norm.item<double>() : 0.0;
  const auto sums = run_pass(group, lamb_stage_1_rule(control, global_norm, half_updates));
  write_norms(group, row_sums<rules::LambStage1>(group, sums, 0), norms.params);
  write_norms(group, row_sums<rules::LambStage1>(group, sums, 1), norms.updates);
}

void lamb_stage_2(const plan::Group& group, const LambControl& control, const LambNorms& norms, bool copies) {
  const float* params = norms.params.const_data_ptr<float>();
  const float* updates = norms.updates.const_data_ptr<float>();
  const auto rule_of = [&](const plan::TensorRow& row) {
    return lamb_stage_2_rule(control, params[row.index], updates[row.index]);
  };
  run_pass<rules::LambStage2>(group, rule_of, copies);
}

void larc(const plan::Group& group, const LarcControl& control, const float* param_norms, const float* grad_norms) {
  run_pass<rules::Larc>(group, [&](const plan::TensorRow& row) {
    return larc_rule(control, param_norms[row.index], std::abs(control.grad_scale) * grad_norms[row.index]);
  });
}

}  // namespace apex::kernels::cpu
