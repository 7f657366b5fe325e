#include <apex_cpp/amp/masters/grad_passes.h>

#include <apex_cpp/amp/masters/unscale_path.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace apex::amp::detail {
namespace {

// All gradients of the groups, without overlap, for in-place work.
std::vector<at::Tensor> grads_of(const ParamGroups& groups) {
  separate_grads_of_groups(groups);
  std::vector<at::Tensor> grads;
  for (const auto& param : params_of(groups)) {
    at::Tensor& grad = param.mutable_grad();
    if (!grad.defined()) continue;
    TORCH_CHECK_VALUE(grad.layout() == at::kStrided, "amp::clip_grad_norm_: the gradient of a parameter of shape ",
                      param.sizes(), " has layout ", grad.layout(),
                      ". Make the embedding dense (sparse=false), or give it to an optimizer that amp does not handle, and "
                      "divide its gradients by the loss scale before its step, which must be left out if they are not finite.");
    if (grad.is_neg()) grad = grad.resolve_neg();
    grads.push_back(grad);
  }
  return grads;
}

}  // namespace

UnscalePath& GradPasses::current_path() { return state_ == State::in_later_pass ? delayed_ : *path_; }

void GradPasses::enter(bool use_fused_path, const LossScaler& scaler) {
  follow_model();  // before `release_recorded_values`
  if (state_ == State::idle) path_ = use_fused_path ? static_cast<UnscalePath*>(&fused_) : &materialized_;
  state_ = has_delayed() ? State::in_later_pass : State::in_pass;  // SL-09: a later pass adds to delayed gradients
  release_recorded_values();
  delayed_.expect_scale(scaler.loss_scale());
  for (TrainedParam* each : table_.native()) each->added_grad = {};
  current_path().enter();
}

void GradPasses::enter(std::shared_ptr<GradShards> shards, bool delayed, const LossScaler& scaler) {
  if (state_ == State::idle) path_ = &sharded_;
  sharded_.begin(std::move(shards), delayed || has_delayed(), scaler);
  state_ = has_delayed() ? State::in_later_pass : State::in_pass;
  current_path().enter();
}

void GradPasses::join(const LossScaler& scaler) {
  const at::NoGradGuard no_grad;
  if (state_ == State::in_later_pass) delayed_.join(scaler.loss_scale());
}

void GradPasses::exit(LossScaler& scaler) {
  const at::NoGradGuard no_grad;
  if (std::exchange(state_, State::collected) == State::in_later_pass) delayed_.exit(scaler);
  path_->exit(scaler);
}

void GradPasses::exit_delayed(LossScaler& scaler) {
  const at::NoGradGuard no_grad;
  if (std::exchange(state_, State::delayed) == State::in_later_pass) delayed_.exit(scaler);
  if (is_sharded()) sharded_.end_held();
  delayed_.set_scale(scaler.loss_scale());
}

void GradPasses::abandon() {
  UnscalePath& path = current_path();
  if (is_sharded() && &path != path_) sharded_.abandon();
  state_ = has_delayed() ? State::delayed : State::collected;
  path.abandon();
}

void GradPasses::materialize() {
  settle();
  if (!fused_.pending()) return follow_model();
  if (state_ != State::collected) return;
  const at::NoGradGuard no_grad;
  release_recorded_values();  // native gradients are unscaled in place
  fused_.unscale();
  materialized_.record_grads();
  path_ = &materialized_;
}

void GradPasses::follow_model() {
  if (state_ == State::collected && path_ == &materialized_) materialized_.follow_model();
}

void GradPasses::end_step() {
  for (TrainedParam* each : table_.with_masters()) each->drop_master_grad();
  release_recorded_values();
  fused_.consume();
  sharded_.drop();
  if (state_ != State::delayed) state_ = State::idle;
}

void GradPasses::end_skipped_step() {
  if (state_ != State::delayed) {
    for (TrainedParam* each : params_with_indirect_grads()) each->last_grads.model = GradSnapshot(each->param.grad());
  }
  end_step();  // releases the recorded values
}

void GradPasses::forget() {
  for (TrainedParam* each : table_.all()) each->earlier_grads = {};
  for (TrainedParam* each : table_.with_masters()) each->last_grads.model = GradSnapshot(each->param.grad());
  release_recorded_values();
  fused_.reset();
  state_ = in_pass() ? State::in_pass : State::idle;
}

void GradPasses::release_recorded_values() {
  for (TrainedParam* each : table_.all()) each->last_grads.model.forget_values();
}

MasterTable::Params GradPasses::params_with_indirect_grads() const {
  return grad_scale() == 1.0 ? table_.with_masters() : table_.all();
}

const TrainedParam* GradPasses::added_with_scaled_grad() const {
  if (state_ != State::collected || path_ != &materialized_ || delayed_.expected_scale() == 1.0) return nullptr;
  const auto native = table_.native();
  const auto found = std::find_if(native.begin(), native.end(), [](const TrainedParam* each) {
    const at::Tensor& grad = each->param.grad();
    return each->added_grad.matches(grad) && has_nonzero(grad);
  });
  return found == native.end() ? nullptr : *found;
}

double GradPasses::clip(const ParamGroups& groups, double max_norm) {
  if (fused_.pending()) return fused_.clip(max_norm);
  settle();
  follow_model();
  return clip_in_place(grads_of(groups), max_norm);
}

void UnclaimedGrads::begin_block(const Params& params) {
  before_.clear();
  for (const at::Tensor& param : params) before_.push_back({param, TensorVersion(param.grad())});
}

void UnclaimedGrads::end_block(const std::function<bool(const at::Tensor&)>& is_taken) {
  const auto gone = [](const Gradient& each) { return !each.is_unchanged(); };
  unclaimed_.erase(std::remove_if(unclaimed_.begin(), unclaimed_.end(), gone), unclaimed_.end());
  for (const Gradient& before : std::exchange(before_, {})) {
    if (before.was_given() && !is_taken(before.param)) unclaimed_.push_back({before.param, TensorVersion(before.param.grad())});
  }
}

bool UnclaimedGrads::Gradient::was_given() const {
  const at::Tensor& grad = param.grad();
  return grad.defined() && !is_unchanged() && (!had_own_block || has_nonzero(grad));
}

bool UnclaimedGrads::record() {
  const size_t earlier = unclaimed_.size();
  for (Gradient& each : before_) {
    if (!each.was_given()) continue;
    each.version = TensorVersion(each.param.grad());
    unclaimed_.push_back(each);
  }
  return unclaimed_.size() > earlier;
}

void UnclaimedGrads::skip_own_changes() {
  for (Gradient& each : before_) {
    each.version = TensorVersion(each.param.grad());
    each.had_own_block = true;
  }
}

void UnclaimedGrads::forget(const Params& gone) {
  std::unordered_set<const at::TensorImpl*> going;
  for (const at::Tensor& param : gone) going.insert(param.unsafeGetTensorImpl());
  const auto goes = [&](const Gradient& each) { return going.count(each.param.unsafeGetTensorImpl()) > 0; };
  unclaimed_.erase(std::remove_if(unclaimed_.begin(), unclaimed_.end(), goes), unclaimed_.end());
}

at::Tensor UnclaimedGrads::first(const std::function<bool(const at::Tensor&)>& filter) const {
  for (const Gradient& each : unclaimed_) {
    if (each.is_unchanged() && (!filter || filter(each.param))) return each.param;
  }
  return {};
}

std::unordered_set<const at::TensorImpl*> UnclaimedGrads::params() const {
  std::unordered_set<const at::TensorImpl*> params;
  for (const Gradient& each : unclaimed_) {
    if (each.is_unchanged()) params.insert(each.param.unsafeGetTensorImpl());
  }
  return params;
}

namespace {

constexpr const char* kRemedies =
    "Differentiate the loss in a block: { auto scaled_loss = amp::scale_loss(loss, optimizer); scaled_loss.backward(); }; "
    "call optimizer.zero_grad(), then write gradients of your own into amp::master_params(optimizer)[i].mutable_grad(), in "
    "FP32; or drop the gradient with the model's zero_grad().";

void check_unchanged(const TrainedParam& each, bool after_block, const char* caller, const Session& session) {
  if (!each.last_grads.model.was_changed(each.param.grad())) return;
  TORCH_CHECK(after_block, caller, " found a gradient of ", session.name_of(each.param),
              " that no scale_loss block has unscaled. The step trains FP32 master weights and would ignore this gradient. ",
              kRemedies);
  TORCH_CHECK(false, caller, " found that the gradient of ", session.name_of(each.param),
              " was changed after its scale_loss block. The step would ignore the change, because it reads the unscaled FP32 "
              "gradients. Clip with amp::clip_grad_norm_(optimizer, max_norm), or edit the gradients of "
              "amp::master_params(optimizer), after the block. Differentiate a further loss in a block of its own.");
}

// Whether one of the gradients was written since the last block, and not with zeros. One read for all: zero_grad(false) writes
// each.
bool any_was_written(const MasterTable::Params& params, const std::unordered_set<const at::TensorImpl*>& left_out = {}) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> written;
  for (const TrainedParam* each : params) {
    if (!left_out.empty() && left_out.count(each->param.unsafeGetTensorImpl())) continue;
    if (!each->last_grads.model.matches(each->param.grad())) written.push_back(each->param.grad());
  }
  return any_nonzero(written);
}

}  // namespace

void check_step_reads_grads(const GradPasses& passes, const Session& session) {
  const bool after_block = passes.state() == GradPasses::State::collected;
  const auto params = passes.params_with_indirect_grads();
  if (any_was_written(params)) {
    for (const TrainedParam* each : params) check_unchanged(*each, after_block, "step()", session);
  }
  const TrainedParam* added = passes.added_with_scaled_grad();
  TORCH_CHECK(!added, "step() found a gradient of ", added ? session.name_of(added->param) : "",
              ", which was added after the scale_loss block: the gradient may carry the loss scale. Add parameters before the "
              "block, or drop their gradients before.");
}

void check_block_keeps_grads(const GradPasses& passes, const UnclaimedGrads& unclaimed, const Session& session) {
  if (passes.has_delayed()) return;  // the block adds to them
  const bool after_block = passes.state() == GradPasses::State::collected;
  const auto params = passes.params_with_indirect_grads();
  const auto dropped = unclaimed.params();
  if (!any_was_written(params, dropped)) return;
  for (const TrainedParam* each : params) {
    if (dropped.count(each->param.unsafeGetTensorImpl())) continue;
    check_unchanged(*each, after_block, "amp::scale_loss", session);
  }
}

}  // namespace apex::amp::detail
