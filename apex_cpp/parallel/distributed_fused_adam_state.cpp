// DistributedFusedAdam in archives and checkpoints.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/optimizers/detail/fused_step.h>
#include <apex_cpp/optimizers/detail/remainders.h>
#include <apex_cpp/parallel/distributed_fused_adam.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/sharded/param_sync.h>
#include <apex_cpp/parallel/sharded/sharded_grads.h>

#include <string>
#include <utility>
#include <vector>

namespace apex::parallel {

using optimizers::FusedAdamOptions;
using optimizers::FusedAdamParamState;

at::Tensor DistributedFusedAdam::gathered(const at::Tensor& param, const at::Tensor& part) const {
  if (!part.defined()) return part;
  return detail::gather_on_rank_0(*sync_, sync_->index_of(param), part);
}

void DistributedFusedAdam::save(torch::serialize::OutputArchive& archive) const {
  const at::NoGradGuard no_grad;
  sync();
  finish_param_sync();
  const bool any_hidden_write = has_hidden_writes();
  FusedAdam full(param_groups_, static_cast<const FusedAdamOptions&>(defaults()));
  for (const at::Tensor& param : amp::detail::params_of(param_groups_)) {
    const auto found = state_.find(param.unsafeGetTensorImpl());
    if (found == state_.end()) continue;
    const auto& state = static_cast<const FusedAdamParamState&>(*found->second);
    auto gathered_state = std::make_unique<FusedAdamParamState>();
    const auto [exp_avg, exp_avg_sq] = state.float32_moments();
    gathered_state->exp_avg = gathered(param, exp_avg);
    gathered_state->exp_avg_sq = gathered(param, exp_avg_sq);
    at::Tensor master = state.master_param;
    if (state.remainder.defined() && keeps_masters_of(param.scalar_type())) {
      master = optimizers::detail::joined(part_of(param, param), state.remainder);
    } else if (const auto* record = record_of(param); master.defined() && record) {
      if (any_hidden_write || !record->matches(param)) master = with_written_values(param, master);
    }
    gathered_state->master_param = gathered(param, master);
    if (writes_file()) full.state()[param.unsafeGetTensorImpl()] = std::move(gathered_state);
  }
  torch::optim::serialize<FusedAdamParamState, FusedAdamOptions>(archive, full);
  save_group_states(archive);
  if (!writes_file() && !state_.empty()) optimizers::detail::mark_without_states(archive, sync().rank());
}

void DistributedFusedAdam::load(torch::serialize::InputArchive& archive) {
  const at::NoGradGuard no_grad;
  finish_param_sync();
  sync();
  auto read = optimizers::detail::read_as_saved<FusedAdamParamState, FusedAdamOptions>(archive, param_groups_);
  slice_states(read);
  restore(read, archive, /*takes_remainders=*/false);
  written_.clear();
}

// Replaces the full states of an archive by this rank's parts. A parameter that is frozen now has a part, too.
void DistributedFusedAdam::slice_states(torch::optim::Optimizer& read) {
  std::vector<at::Tensor> with_state;
  for (const at::Tensor& param : amp::detail::params_of(param_groups_)) {
    if (read.state().count(param.unsafeGetTensorImpl()) != 0) with_state.push_back(param);
  }
  sync().lay_out_once_trained(with_state);
  optimizers::detail::for_each_state<FusedAdamParamState>(
      read, param_groups_, [&](FusedAdamParamState& state, const at::Tensor& param, size_t group, size_t i) {
        slice_state(param, optimizers::detail::name_of(group, i, param), state);
      });
}

void DistributedFusedAdam::slice_state(const at::Tensor& param, const std::string& name, FusedAdamParamState& state) {
  state.exp_avg = loaded_part(param, state.exp_avg, at::kFloat);
  state.exp_avg_sq = loaded_part(param, state.exp_avg_sq, at::kFloat);
  state.store_moments(moment_dtype_);
  state.master_param = loaded_part(param, state.master_param, at::kFloat);
  if (state.remainder.defined()) state.remainder = loaded_part(param, state.remainder, state.remainder.scalar_type());
  const at::Tensor own = part_of(param, param);
  state.remainder = optimizers::detail::loaded_remainder(own, state.remainder, master_storage(), name);
  state.keep_master_as_remainder(own);
  if (!has_own_master(param)) state.master_param.reset();
}

at::Tensor DistributedFusedAdam::loaded_part(const at::Tensor& param, const at::Tensor& full, at::ScalarType dtype) const {
  if (!full.defined()) return full;
  TORCH_CHECK(full.sizes() == param.sizes(), "The saved state of a parameter has shape ", full.sizes(), ", expected ",
              param.sizes(), ". Load what DistributedFusedAdam or FusedAdam saved over the same parameters.");
  return part_of(param, amp::detail::in_layout_of(full, param)).to(param.device(), dtype, false, /*copy=*/true);
}

// All ranks write all of the parameter: they may have loaded values in the middle between two bfloat16, which were rounded to
// even.
void DistributedFusedAdam::split_whole(const at::Tensor& param, const at::Tensor& value) {
  const at::Tensor remainder = at::empty_like(param, optimizers::detail::remainder_dtype(master_storage()));
  optimizers::detail::split_into(value, param, remainder);
  state_of<FusedAdamParamState>(param).remainder = part_of(param, remainder).clone();
}

bool DistributedFusedAdam::load_kept_master(const at::Tensor& param, const at::Tensor& value) {
  if (!keeps_masters_of(param.scalar_type()) || !has_state(param)) return false;
  split_whole(param, value);
  return true;
}

void DistributedFusedAdam::load_master(const at::Tensor& param, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const size_t index = sync().index_of(param);
  if (!sync().place_of(index)) sync().lay_out_unfrozen();
  if (!sync().place_of(index)) return;
  if (keeps_masters_of(param.scalar_type())) return split_whole(param, value);
  if (!has_own_master(param)) return;
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
