#include <apex_cpp/amp/masters/grad_passes.h>

#include <ATen/core/grad_mode.h>
#include <apex_cpp/amp/masters/clipping.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>
#include <apex_cpp/amp/tensors/listed_once.h>

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

GradOrder& GradPasses::taker() { return state_ == State::further ? delayed_ : *order_; }

void GradPasses::enter(bool in_fused_order, const LossScaler& scaler) {
  follow_model();  // as long as marks have their values
  if (state_ == State::rest) order_ = in_fused_order ? static_cast<GradOrder*>(&fused_) : &materialized_;
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
  GradOrder& order = taker();
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
    for (TrainedParam* each : not_read_as_they_are()) each->mark = GradMark(each->param.grad());
  }
  end_step();  // which lets go of the marks' values
}

void GradPasses::forget() {
  for (TrainedParam* each : table_.all()) {
    each->aside.reset();
    each->waiting.reset();
    each->joined.reset();
  }
  for (TrainedParam* each : table_.with_masters()) each->mark = GradMark(each->param.grad());
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

}  // namespace apex::amp::detail
