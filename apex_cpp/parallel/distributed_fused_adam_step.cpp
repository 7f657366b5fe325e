// How a step of DistributedFusedAdam updates this rank's parts of the parameters.
#include <apex_cpp/optimizers/detail/fused_step.h>
#include <apex_cpp/optimizers/detail/remainders.h>
#include <apex_cpp/parallel/distributed_fused_adam.h>
#include <apex_cpp/parallel/sharded/param_sync.h>
#include <apex_cpp/parallel/sharded/sharded_grads.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/multi_tensor.h"

namespace apex::parallel {

using optimizers::FusedAdamOptions;
using optimizers::FusedAdamParamState;

// This rank's part of a parameter, with its state. `place`: where the new value is sent from.
struct DistributedFusedAdam::SteppedPart {
  at::Tensor grad, param, exp_avg, exp_avg_sq, remainder, place;

  SteppedPart none() const {
    const auto none_of = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.narrow(0, 0, 0) : tensor; };
    return {none_of(grad), none_of(param), none_of(exp_avg), none_of(exp_avg_sq), none_of(remainder), none_of(place)};
  }
};

// The parts that one kernel call updates, all on one device, with masters of one kind.
struct DistributedFusedAdam::Parts : optimizers::detail::LaunchSet {
  enum class Masters { params, own, remainders };

  explicit Parts(Masters kind) : masters(kind) {}
  void add(const SteppedPart& part, size_t position);

  Masters masters;
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs;
  /// With remainders, which are then the model_params. Otherwise the places are the model_params.
  std::vector<at::Tensor> places;
  /// Of a part with moments in 8 bits that begins within its parameter: the parameter's place in the set of whole parameters,
  /// and the part's first element.
  int64_t first_position = 0, first_element = 0;
};

void DistributedFusedAdam::Parts::add(const SteppedPart& part, size_t position) {
  grads.push_back(part.grad);
  params.push_back(part.param);
  exp_avgs.push_back(part.exp_avg);
  exp_avg_sqs.push_back(part.exp_avg_sq);
  model_params.push_back(masters == Masters::remainders ? part.remainder : part.place);
  if (masters == Masters::remainders) places.push_back(part.place);
  positions.push_back(static_cast<int64_t>(position));
}

DistributedFusedAdam::Parts& DistributedFusedAdam::set_for(std::vector<Parts>& sets, const at::Tensor& param) const {
  const bool splits = keeps_masters_of(param.scalar_type());
  const auto masters = splits                  ? Parts::Masters::remainders
                       : has_own_master(param) ? Parts::Masters::own
                                               : Parts::Masters::params;
  const auto set = std::find_if(sets.begin(), sets.end(), [&](const Parts& each) {
    return each.masters == masters && each.params[0].device() == param.device();
  });
  return set == sets.end() ? sets.emplace_back(masters) : *set;
}

DistributedFusedAdam::SteppedPart DistributedFusedAdam::stepped_part(const at::Tensor& param) {
  SteppedPart part;
  part.param = master_of(param);
  auto& state = state_of<FusedAdamParamState>(param);
  std::tie(part.exp_avg, part.exp_avg_sq) = moments_of(part.param, state);
  if (keeps_masters_of(param.scalar_type())) {
    part.remainder =
        optimizers::detail::state_like(part.param, state.remainder, optimizers::detail::remainder_dtype(master_storage()));
  }
  const size_t index = sync_->index_of(param);
  part.grad = sync_->grad_part(index);
  part.place = param_sync_->place_of(index);
  return part;
}

// All ranks create state for the same parameters, even if a rank's part is empty. With moments in 8 bits, sets have the empty
// parts, too, so that each parameter has the place that it has in FusedAdam's sets, by which moments are rounded. At most one
// part of a bucket begins within its parameter; it has a set of its own, and an empty part in its place.
std::vector<DistributedFusedAdam::Parts> DistributedFusedAdam::parts_of(size_t group) {
  std::vector<Parts> sets, begun;
  const bool coded = moment_dtype_ == at::kByte;
  const auto& params = param_groups_[group].params();
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& param = params[i];
    if (!sync_->is_present(sync_->index_of(param))) continue;
    const SteppedPart part = stepped_part(param);
    if (part.param.numel() == 0 && !coded) continue;
    Parts& set = set_for(sets, param);
    const int64_t first = coded ? part_of(param).begin : 0;
    if (first > 0) {
      Parts& own = begun.emplace_back(set.masters);
      own.first_position = static_cast<int64_t>(set.params.size());
      own.first_element = first;
      own.add(part, i);
    }
    set.add(first > 0 ? part.none() : part, i);
  }
  sets.insert(sets.end(), begun.begin(), begun.end());
  return sets;
}

std::unique_ptr<torch::optim::OptimizerParamState> DistributedFusedAdam::new_state(
    const optimizers::detail::SteppedParam& /*param*/) const {
  return std::make_unique<FusedAdamParamState>();
}

void DistributedFusedAdam::update() {
  master_step.grad_scale = sync_->grad_factor();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (param_groups_[group].params().empty()) continue;
    run_step(group, parts_of(group), settings_of(group), [this](const Parts& set, auto settings, const auto& tensors) {
      settings.first_position = set.first_position;
      settings.first_element = set.first_element;
      kernels::multi_tensor_adam(set.grads, set.params, set.exp_avgs, set.exp_avg_sqs, set.model_params, settings, tensors);
      mark_updated();
      if (!set.places.empty()) kernels::multi_tensor_copy(set.params, set.places);
    });
  }
}

}  // namespace apex::parallel
