// DistributedFusedAdam in archives and checkpoints.
#include <ATen/core/grad_mode.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/optimizers/detail/fused_step.h>
#include <apex_cpp/parallel/distributed_fused_adam.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/sharded/param_sync.h>
#include <apex_cpp/parallel/sharded/sharded_grads.h>

#include <string>
#include <utility>

namespace apex::parallel {

using optimizers::FusedAdamOptions;
using optimizers::FusedAdamParamState;

at::Tensor DistributedFusedAdam::gathered(const at::Tensor& param, const at::Tensor& part) const {
  if (!part.defined()) return part;
  return detail::gather_on_rank_0(*sync_, sync_->index_of(param), part.to(at::kFloat));
}

void DistributedFusedAdam::save(torch::serialize::OutputArchive& archive) const {
  const at::NoGradGuard no_grad;
  sync();
  finish_param_sync();
  FusedAdam full(param_groups_, static_cast<const FusedAdamOptions&>(defaults()));
  for (const at::Tensor& param : amp::detail::params_of(param_groups_)) {
    const auto found = state_.find(param.unsafeGetTensorImpl());
    if (found == state_.end()) continue;
    const auto& state = static_cast<const FusedAdamParamState&>(*found->second);
    auto gathered_state = std::make_unique<FusedAdamParamState>();
    gathered_state->exp_avg = gathered(param, state.exp_avg);
    gathered_state->exp_avg_sq = gathered(param, state.exp_avg_sq);
    gathered_state->master_param = gathered(param, state.master_param);
    if (writes_file()) full.state()[param.unsafeGetTensorImpl()] = std::move(gathered_state);
  }
  torch::optim::serialize<FusedAdamParamState, FusedAdamOptions>(archive, full);
  save_group_states(archive);
}

void DistributedFusedAdam::load(torch::serialize::InputArchive& archive) {
  const at::NoGradGuard no_grad;
  finish_param_sync();
  sync();
  auto read = optimizers::detail::read_as_saved<FusedAdamParamState, FusedAdamOptions>(archive, param_groups_);
  slice_states(read);
  restore(read, archive);
  written_.clear();
}

// Replaces the full states of an archive by this rank's parts.
void DistributedFusedAdam::slice_states(torch::optim::Optimizer& read) {
  for (const at::Tensor& param : amp::detail::params_of(param_groups_)) {
    const auto found = read.state().find(param.unsafeGetTensorImpl());
    if (found == read.state().end()) continue;
    auto& state = static_cast<FusedAdamParamState&>(*found->second);
    sync().place_of(sync().index_of(param));
    for (at::Tensor* each : {&state.exp_avg, &state.exp_avg_sq, &state.master_param}) {
      if (!each->defined()) continue;
      TORCH_CHECK(each->sizes() == param.sizes(), "The saved state of a parameter has shape ", each->sizes(), ", expected ",
                  param.sizes(), ". Load what DistributedFusedAdam or FusedAdam saved over the same parameters.");
      const auto dtype = each == &state.master_param ? at::kFloat : dtype_;
      *each = part_of(param, amp::detail::in_layout_of(*each, param)).to(param.device(), dtype, false, /*copy=*/true);
    }
    if (!has_own_master(param)) state.master_param.reset();
  }
}

void DistributedFusedAdam::load_master(const at::Tensor& param, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const detail::ShardedGrads::Place* place = sync().place_of(sync().index_of(param));
  if (!place || !has_own_master(param)) return;
  const at::Tensor full = amp::detail::in_layout_of(value, param);
  state_of<FusedAdamParamState>(param).master_param = part_of(param, full).to(param.device(), at::kFloat, false, /*copy=*/true);
  written_.erase(param.unsafeGetTensorImpl());
}

bool DistributedFusedAdam::writes_file() const { return sync().rank() == 0; }

void DistributedFusedAdam::agree_on_file(const std::string& error) const {
  const std::string of_rank_0 = gather_strings(sync().group(), error, "saving a checkpoint").front();
  TORCH_CHECK(of_rank_0.empty(), "Rank 0 could not write the checkpoint: ", of_rank_0);
}

}  // namespace apex::parallel
