#include <apex_cpp/amp/masters/step_gate.h>

#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/statistics.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include "kernels/capture.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <utility>

namespace apex::amp::detail {

StepGate::StepGate(Session& session) : session_(session) {
  if (session_.enabled()) result.loss_scale = session_.scalers.front().loss_scale();
}

void StepGate::check_in_use(OriginalOptimizer& original_optimizer) {
  TORCH_CHECK(!retired_,
              "The model of this optimizer was given to amp::initialize again, with another optimizer, which keeps the master "
              "weights now. Use the handles of the newest call.");
  original_optimizer.check();
}

void StepGate::skip_next_step(const Overflow& overflow) {
  if (!overflow_) overflow_ = overflow;
}

void StepGate::check_closure(bool has_closure) const {
  TORCH_CHECK(!has_closure || !(session_.has_masters() || skips()),
              "step(closure) is not supported with master weights or a step that is to be skipped: the closure would run "
              "backward without loss scaling. Compute the loss before, inside amp::scale_loss, and call step().");
}

bool StepGate::begin_step() {
  StepResult fresh;
  fresh.loss_scale = result.loss_scale;
  fresh.grad_norm = result.grad_norm;
  result = fresh;
  if (!overflow_) return true;
  report_skip(*std::exchange(overflow_, std::nullopt));
  return false;
}

void StepGate::report_skip(const Overflow& overflow) {
  result.skipped = true;
  result.first_nonfinite = overflow.grad.parameter;
  result.inf_count = overflow.grad.inf_count;
  result.nan_count = overflow.grad.nan_count;
  result.nonfinite_grads = overflow.grad.grads;
  result.grad = overflow.grad.statistics;
  result.nonfinite_ranks = overflow.grad.ranks;
  result.nonfinite_loss = overflow.nonfinite_loss;
  result.loss_id = overflow.loss_id;
  result.loss_scale_before = overflow.scale_before;
  result.loss_scale_after = session_.scaler(overflow.loss_id).loss_scale();
  print_skipped_step(session_, overflow, result.loss_scale_after);
}

namespace {

// Equal NaNs count as equal.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.detach().view(at::kShort), b.detach().view(at::kShort));
}

}  // namespace

void CustomOptimizerCheck::begin(MasterTable::Params with_masters) {
  weights_.clear();
  if (is_done_) return;
  for (const TrainedParam* each : with_masters) {
    if (kernels::is_captured(each->param.device())) return;
    weights_.push_back({each->param, each->master, each->param.detach().clone()});
  }
}

void CustomOptimizerCheck::check(const Session& session) const {
  const auto is_lost = [](const Weight& weight) {
    return !same_bits(weight.param, weight.before) &&
           !same_bits(weight.param, weight.master.detach().to(weight.param.scalar_type()));
  };
  const auto lost = std::find_if(weights_.begin(), weights_.end(), is_lost);
  if (lost == weights_.end()) return;
  for (const Weight& weight : weights_) weight.param.detach().copy_(weight.before);
  TORCH_CHECK(false, "step() of an optimizer class of the program's own wrote into the model's weight ",
              session.name_of(lost->param),
              ", which amp then overwrites with its FP32 master: nothing would be trained. Inside step(), update the tensors "
              "in param_groups(), which are the masters. An optimizer or a list of parameters that the class holds has the "
              "model's weights instead; derive from the optimizer's class rather than holding an optimizer.");
}

void CustomOptimizerCheck::end() {
  const auto moved = [](const Weight& weight) { return !same_bits(weight.param, weight.before); };
  is_done_ = is_done_ || std::any_of(weights_.begin(), weights_.end(), moved);
  weights_.clear();
}

namespace {

// Whether `statistics` supports the gradient. Unscaling rejects other gradients, but skips gradients from before the block that
// the pass did not change: the program may have set any tensor there, and they were not checked for overflow.
bool has_statistics(const at::Tensor& grad) { return grad.layout() == at::kStrided && is_real_float(grad.scalar_type()); }

// A parameter and its non-finite gradient; null if there is none.
struct Nonfinite {
  const TrainedParam* param = nullptr;
  NonfiniteGrad grad;
};

// Searches the gradients of the member `of` (`param` or `master`) in one pass.
Nonfinite find_nonfinite(MasterTable::Params params, at::Tensor TrainedParam::*of, const Session& session) {
  std::vector<const TrainedParam*> owners;
  NamedTensors grads;
  for (const TrainedParam* each : params) {
    const at::Tensor& grad = (each->*of).grad();
    if (!grad.defined() || !has_statistics(grad)) continue;
    owners.push_back(each);
    grads.emplace_back(session.plain_name_of(each->param), grad);
  }
  auto [grad, index] = first_nonfinite(statistics(grads));
  if (!grad.found()) return {};
  grad.dtype = grads[index].second.scalar_type();
  return {owners[index], std::move(grad)};
}

}  // namespace

NonfiniteGrad first_nonfinite(const MasterTable& table, const Session& session) {
  Nonfinite found = find_nonfinite(table.all(), &TrainedParam::param, session);
  if (!found.param) return find_nonfinite(table.with_masters(), &TrainedParam::master, session).grad;
  const auto sync = grad_sync_of(found.param->param);
  found.grad.is_reduced = sync != nullptr;
  if (sync) found.grad.ranks = sync->ranks_with_nonfinite(found.param->param);
  return found.grad;
}

NonfiniteGrad first_nonfinite(const GradShards& shards, const Session& session) {
  const auto found = shards.first_nonfinite();
  NonfiniteGrad grad;
  if (!found.param.defined()) return grad;
  grad.parameter = session.plain_name_of(found.param);
  grad.inf_count = found.inf_count, grad.nan_count = found.nan_count, grad.numel = found.param.numel();
  grad.grads = found.grads;
  grad.is_reduced = true;
  grad.ranks = found.ranks;
  return grad;
}

}  // namespace apex::amp::detail
