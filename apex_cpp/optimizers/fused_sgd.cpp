#include <apex_cpp/optimizers/fused_sgd.h>

#include <apex_cpp/optimizers/detail/fused_step.h>

#include "kernels/optimizers.h"

namespace apex::optimizers {
namespace {

constexpr const char* kFusedSGD = "FusedSGD";

void check(const std::string& owner, const FusedSGDOptions& options) {
  detail::check_not_negative(owner, "lr", options.lr());
  detail::check_not_negative(owner, "momentum", options.momentum());
  detail::check_not_negative(owner, "weight_decay", options.weight_decay());
  TORCH_CHECK_VALUE(!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0), owner,
                    ": nesterov needs a momentum above 0 and no dampening, got momentum ", options.momentum(),
                    " and dampening ", options.dampening(), ".");
}

kernels::SgdControl control_of(const FusedSGDOptions& options) {
  kernels::SgdControl control;
  control.lr = options.lr();
  control.weight_decay = options.weight_decay();
  control.momentum = options.momentum();
  control.dampening = options.dampening();
  control.nesterov = options.nesterov();
  control.weight_decay_after_momentum = options.wd_after_momentum();
  return control;
}

}  // namespace

FusedSGD::FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedSGDOptions defaults)
    : FusedOptimizer(groups, defaults.clone(), detail::options_rules<FusedSGDOptions, check>(kFusedSGD),
                     {defaults.set_grad_none(), defaults.materialize_master_grads(), Counting::none}) {}

void FusedSGD::update() {
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    kernels::SgdControl control = control_of(detail::options_of<FusedSGDOptions>(param_groups_[group]));
    set_scaling(control);
    for (const auto& set : launch_sets(group, /*split_fresh=*/true)) {
      std::vector<at::Tensor> momentum_buffers;
      for (const at::Tensor& param : set.params) {
        at::Tensor& buffer = state_of<FusedSGDParamState>(param).momentum_buffer;
        momentum_buffers.push_back(detail::kept_like(param, buffer, param.scalar_type()));
      }
      kernels::SgdControl of_set = control;
      detail::place_control(set.params.front().device(), of_set);
      of_set.first_run = set.fresh;
      kernels::multi_tensor_sgd(set.grads, set.params, momentum_buffers, set.model_params, of_set);
    }
  }
}

void FusedSGD::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<FusedSGDParamState, FusedSGDOptions>(archive, *this);
  save_group_states(archive);
}

void FusedSGD::load(torch::serialize::InputArchive& archive) {
  auto read = detail::read_optimizer<FusedSGDParamState, FusedSGDOptions>(archive, param_groups_);
  take_over(read, archive);
}

std::unique_ptr<torch::optim::Optimizer> FusedSGD::make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) {
  return detail::make_amp_handle(*this, session);
}

}  // namespace apex::optimizers
