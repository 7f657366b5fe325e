#include <apex_cpp/amp/masters/grad_passes.h>

#include <apex_cpp/amp/masters/unscale_path.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace apex::amp::detail {
namespace {

// To be worked on in place.
std::vector<at::Tensor> grads_of(const ParamGroups& groups) {
  part_grads_of_groups(groups);
  std::vector<at::Tensor> grads;
  for (const auto& param : params_of(groups)) {
    if (param.grad().defined()) grads.push_back(param.grad());
  }
  return grads;
}

}  // namespace

UnscalePath& GradPasses::taker() { return state_ == State::further ? delayed_ : *order_; }

void GradPasses::enter(bool in_fused_order, const LossScaler& scaler) {
  follow_model();  // as long as marks have their values
  if (state_ == State::rest) order_ = in_fused_order ? static_cast<UnscalePath*>(&fused_) : &materialized_;
  state_ = waiting() ? State::further : State::pass;  // SL-09: a further pass adds to what waits
  forget_marked_values();
  delayed_.expect_scale(scaler.loss_scale());
  taker().enter();
}

void GradPasses::enter(std::shared_ptr<GradShards> shards, bool delayed, const LossScaler& scaler) {
  if (state_ == State::rest) order_ = &sharded_;
  sharded_.begin(std::move(shards), delayed || waiting(), scaler);
  state_ = waiting() ? State::further : State::pass;
  taker().enter();
}

void GradPasses::join(const LossScaler& scaler) {
  const at::NoGradGuard no_grad;
  if (state_ == State::further) delayed_.join(scaler.loss_scale());
}

void GradPasses::exit(LossScaler& scaler) {
  const at::NoGradGuard no_grad;
  if (std::exchange(state_, State::collected) == State::further) delayed_.exit(scaler);
  order_->exit(scaler);
}

void GradPasses::exit_delayed(LossScaler& scaler) {
  const at::NoGradGuard no_grad;
  if (std::exchange(state_, State::waiting) == State::further) delayed_.exit(scaler);
  if (is_sharded()) sharded_.end_held();
  delayed_.wait(scaler.loss_scale());
}

void GradPasses::abandon() {
  UnscalePath& order = taker();
  if (is_sharded() && &order != order_) sharded_.abandon();
  state_ = waiting() ? State::waiting : State::collected;
  order.abandon();
}

void GradPasses::materialize() {
  if (!fused_.pending()) return follow_model();
  if (state_ != State::collected) return;
  const at::NoGradGuard no_grad;
  forget_marked_values();  // native gradients are unscaled in place
  fused_.unscale();
  materialized_.mark_grads();
  order_ = &materialized_;
}

void GradPasses::follow_model() {
  if (state_ == State::collected && order_ == &materialized_) materialized_.follow_model();
}

void GradPasses::end_step() {
  for (TrainedParam* each : table_.with_masters()) each->drop_master_grad();
  forget_marked_values();
  fused_.consume();
  sharded_.drop();
  if (state_ != State::waiting) state_ = State::rest;
}

void GradPasses::end_skipped_step() {
  if (state_ != State::waiting) {
    for (TrainedParam* each : not_read_as_they_are()) each->mark = GradSnapshot(each->param.grad());
  }
  end_step();  // which lets go of the marks' values
}

void GradPasses::forget() {
  for (TrainedParam* each : table_.all()) {
    each->aside.reset();
    each->waiting.reset();
    each->joined.reset();
  }
  for (TrainedParam* each : table_.with_masters()) each->mark = GradSnapshot(each->param.grad());
  forget_marked_values();
  fused_.reset();
  state_ = inside() ? State::pass : State::rest;
}

void GradPasses::forget_marked_values() {
  for (TrainedParam* each : table_.all()) each->mark.forget_values();
}

MasterTable::Params GradPasses::not_read_as_they_are() const {
  return grad_scale() == 1.0 ? table_.with_masters() : table_.all();
}

double GradPasses::clip(const ParamGroups& groups, double max_norm) {
  if (fused_.pending()) return fused_.clip(max_norm);
  follow_model();
  return clip_in_place(grads_of(groups), max_norm);
}

void UnclaimedGrads::begin_block(const Params& params) {
  before_.clear();
  for (const at::Tensor& param : params) before_.push_back({param, TensorVersion(param.grad())});
}

void UnclaimedGrads::end_block(const std::function<bool(const at::Tensor&)>& is_taken) {
  const auto gone = [](const Gradient& each) { return !each.still(); };
  unclaimed_.erase(std::remove_if(unclaimed_.begin(), unclaimed_.end(), gone), unclaimed_.end());
  for (const Gradient& before : std::exchange(before_, {})) {
    const at::Tensor& grad = before.param.grad();
    if (grad.defined() && !before.still() && !is_taken(before.param)) unclaimed_.push_back({before.param, TensorVersion(grad)});
  }
}

void UnclaimedGrads::forget(const Params& gone) {
  std::unordered_set<const at::TensorImpl*> going;
  for (const at::Tensor& param : gone) going.insert(param.unsafeGetTensorImpl());
  const auto goes = [&](const Gradient& each) { return going.count(each.param.unsafeGetTensorImpl()) > 0; };
  unclaimed_.erase(std::remove_if(unclaimed_.begin(), unclaimed_.end(), goes), unclaimed_.end());
}

at::Tensor UnclaimedGrads::first(const std::function<bool(const at::Tensor&)>& counts) const {
  for (const Gradient& each : unclaimed_) {
    if (each.still() && (!counts || counts(each.param))) return each.param;
  }
  return {};
}

std::unordered_set<const at::TensorImpl*> UnclaimedGrads::params() const {
  std::unordered_set<const at::TensorImpl*> params;
  for (const Gradient& each : unclaimed_) {
    if (each.still()) params.insert(each.param.unsafeGetTensorImpl());
  }
  return params;
}

namespace {

constexpr const char* kThirdLine =
    "Differentiate the loss in a block: { auto scaled_loss = amp::scale_loss(loss, optimizer); scaled_loss.backward(); }; "
    "write gradients of your own into amp::master_params(optimizer)[i].mutable_grad(), in FP32; or drop the gradient with the "
    "model's zero_grad().";

// A gradient in another dtype than its parameter's is from before `initialize` cast the parameter: it counts no more (MW-06).
bool is_outside(const TrainedParam& each) {
  const at::Tensor& grad = each.param.grad();
  return grad.defined() && grad.scalar_type() == each.param.scalar_type() && each.mark.was_changed(grad);
}

void check_as_marked(const TrainedParam& each, bool after_block, const char* caller, const Session& session) {
  if (!is_outside(each)) return;
  TORCH_CHECK(after_block, caller, " found a gradient of ", session.name_of(each.param),
              " that no scale_loss block has unscaled, and would not use it: the step trains FP32 master weights. ",
              kThirdLine);
  TORCH_CHECK(false, caller, " found that the gradient of ", session.name_of(each.param),
              " was changed after its scale_loss block, which the step would not see: it reads unscaled FP32 gradients. Clip "
              "with amp::clip_grad_norm_(optimizer, max_norm), or edit the gradients of amp::master_params(optimizer), after "
              "the block. Differentiate a further loss in a block of its own.");
}

}  // namespace

void check_step_reads_grads(const GradPasses& passes, const Session& session) {
  const bool after_block = passes.state() == GradPasses::State::collected;
  for (const TrainedParam* each : passes.not_read_as_they_are()) check_as_marked(*each, after_block, "step()", session);
}

void check_block_keeps_grads(const GradPasses& passes, const UnclaimedGrads& unclaimed, const Session& session) {
  if (passes.waiting()) return;  // they add up, still scaled
  const bool after_block = passes.state() == GradPasses::State::collected;
  const auto dropped = unclaimed.params();
  for (const TrainedParam* each : passes.not_read_as_they_are()) {
    if (dropped.count(each->param.unsafeGetTensorImpl())) continue;
    check_as_marked(*each, after_block, "amp::scale_loss", session);
  }
}

}  // namespace apex::amp::detail
