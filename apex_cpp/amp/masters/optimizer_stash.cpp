#include <apex_cpp/amp/masters/optimizer_stash.h>

#include <apex_cpp/amp/masters/grad_passes.h>
#include <apex_cpp/amp/masters/step_gate.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include "kernels/multi_tensor.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace apex::amp::detail {

OptimizerStash::OptimizerStash(std::shared_ptr<Session> session, std::shared_ptr<OriginalOptimizer> original_optimizer,
                               bool is_custom_class)
    : session_(std::move(session)),
      original_optimizer_(std::move(original_optimizer)),
      master_init_(*session_, table_),
      passes_(table_),
      gate_(*session_),
      is_custom_class_(is_custom_class),
      custom_optimizer_check_(is_custom_class) {}

std::vector<std::shared_ptr<OptimizerStash>> stashes_of(const Session& session) {
  std::vector<std::shared_ptr<OptimizerStash>> stashes;
  for (const auto& weak : session.optimizers) {
    if (auto stash = std::dynamic_pointer_cast<OptimizerStash>(weak.lock())) stashes.push_back(std::move(stash));
  }
  return stashes;
}

// ---- parameters and masters ----

void OptimizerStash::adopt_new_params(const std::vector<at::Tensor>& once_trained) {
  if (!session_->enabled() || !handle() || (once_trained.empty() && !master_init_.is_due(handle()->param_groups()))) return;
  const auto stashes = stashes_of(*session_);
  for (const auto& stash : stashes) stash->forget_gone_params();  // a new parameter may come from another optimizer
  const auto known_param_of = [&](const at::Tensor& tensor) -> std::optional<KnownParam> {
    for (const auto& stash : stashes) {
      if (auto known = stash->table_.known_param(tensor)) return known;
    }
    return std::nullopt;
  };
  master_init_.adopt_new_params(*handle(), known_param_of, once_trained);
  remember_added_casts();
}

// A layer that the program added in the models' type is saved, loaded and initialized again as those that amp has cast.
void OptimizerStash::remember_added_casts() const {
  const auto& type = session_->settings.properties.cast_model_type;
  if (!type || !is_low_precision(*type)) return;
  auto params = params_of(handle()->param_groups());  // with those that are frozen
  for (const TrainedParam* each : table_.all()) params.push_back(each->param);
  for (const at::Tensor& param : params) {
    if (param.scalar_type() == *type && session_that_cast(param) != session_) remember_cast(param, session_);
  }
}

void OptimizerStash::forget_gone_params() {
  if (!handle() || sharded() || passes_.in_pass() || passes_.has_delayed()) return;
  unclaimed_.forget(master_init_.forget_gone_params(*handle()));
}

// Since their group was taken out, the optimizer knows them by the model's parameters.
void OptimizerStash::announce_masters(const std::vector<at::Tensor>& params) const {
  StepsMasters* optimizer = fused();
  for (const at::Tensor& param : params) {
    const auto known = optimizer ? table_.known_param(param) : std::nullopt;
    if (known && !known->param.is_same(param)) optimizer->param_was_replaced(known->param, param);
  }
}

void OptimizerStash::mark_grads_as_preexisting(const std::vector<at::Tensor>& params) {
  if (!session_->has_masters()) return;
  for (const at::Tensor& param : params) table_.mark_grad_as_preexisting(param);
}

void OptimizerStash::make_masters() {
  if (!handle() || inside_backward()) return;
  // While a program saves or loads, all weights may be FP32 for the moment; they would then be taken for native ones.
  const auto params = params_of(handle()->param_groups());
  const auto needs_master = [&](const at::Tensor& param) {
    return is_low_precision(param.scalar_type()) && param.requires_grad() && !table_.find_stepped(param);
  };
  if (std::none_of(params.begin(), params.end(), needs_master)) return;
  adopt_new_params();
  made_before_use_ = true;
}

at::Tensor OptimizerStash::master_of(const at::Tensor& param) const {
  TrainedParam* entry = table_.find(param);
  if (!entry || !entry->has_master()) return {};
  if (entry->has_moved()) table_.match_ties();
  entry->update_master_from_edits();
  return entry->master;
}

at::Tensor OptimizerStash::kept_master_of(const at::Tensor& param) const {
  const auto* fused = table_.find(param) ? dynamic_cast<const StepsMasters*>(handle()) : nullptr;
  return fused ? fused->kept_master_of(param) : at::Tensor();
}

bool OptimizerStash::load_kept_master(const at::Tensor& param, const at::Tensor& value) {
  if (!table_.find(param)) return false;
  auto* fused = dynamic_cast<StepsMasters*>(handle());
  if (fused && fused->load_kept_master(param, value)) return true;
  if (sharded()) sharded()->load_master(param, value);
  return sharded() != nullptr;
}

void OptimizerStash::update_masters_from_edits(bool may_be_restored) const {
  table_.match_ties();
  const auto params = table_.with_masters();
  // Programs initialize weights through data(), which may be after a load of other weights has made the masters.
  const bool any_hidden_write =
      std::exchange(made_before_use_, false) || std::any_of(params.begin(), params.end(), [](const TrainedParam* each) {
        return each->synced_weight.shows_hidden_write(each->param);
      });
  for (TrainedParam* each : params) {
    if (any_hidden_write) each->mark_edited();  // other weights may have writes that the sampled values do not show
    each->update_master_from_edits(may_be_restored);
  }
}

void OptimizerStash::drop_obsolete_master_backups() const {
  for (TrainedParam* each : table_.with_masters()) {
    if (!each->master_was_written()) continue;
    each->drop_backup();
    each->mark_loaded();
  }
}

void OptimizerStash::weights_were_written() {
  if (auto* optimizer = sharded()) optimizer->weights_were_written();
  for (TrainedParam* each : table_.with_masters()) each->mark_edited();
}

std::vector<at::Tensor> OptimizerStash::masters() const {
  update_masters_from_edits();
  std::vector<at::Tensor> masters;
  for (const TrainedParam* each : table_.with_masters_in(handle()->param_groups())) masters.push_back(each->master);
  return masters;
}

std::vector<at::Tensor> OptimizerStash::model_params() const {
  std::vector<at::Tensor> params;
  for (const TrainedParam* each : table_.with_masters_in(handle()->param_groups())) params.push_back(each->param);
  return params;
}

std::vector<int64_t> OptimizerStash::master_positions() const {
  std::vector<int64_t> positions;
  const auto params = params_of(handle()->param_groups());
  for (size_t i = 0; i < params.size(); ++i) {
    const TrainedParam* each = table_.find_stepped(params[i]);
    if (each && each->has_master()) positions.push_back(static_cast<int64_t>(i));
  }
  return positions;
}

std::vector<at::Tensor> OptimizerStash::arrange_saved_masters(const std::vector<at::Tensor>& values,
                                                              const std::vector<int64_t>& positions) {
  const auto params = params_of(handle()->param_groups());
  std::unordered_map<int64_t, at::Tensor> at_position;
  std::vector<at::Tensor> once_trained;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t position = positions.at(i);
    at_position.emplace(position, values[i]);
    if (position < 0 || position >= static_cast<int64_t>(params.size())) continue;
    TORCH_CHECK(
        !fused() || !fused()->keeps_masters_of(params[position].scalar_type()),
        "The saved optimizer has FP32 master weights, and this one has another master_storage. Give it the master_storage "
        "of the file, or load a file of amp::save_checkpoint, which fits any.");
    once_trained.push_back(params[position]);
  }
  adopt_new_params(once_trained);
  std::vector<at::Tensor> here;
  for (const int64_t position : master_positions()) here.push_back(at_position[position]);
  return here;
}

void OptimizerStash::check_masters_fit(const std::vector<at::Tensor>& values) const {
  const auto here = table_.with_masters_in(handle()->param_groups());
  TORCH_CHECK(values.size() == here.size(), "The saved optimizer has ", values.size(), " master weights, this one has ",
              here.size(), ". Load it into an optimizer over the same parameters at the same opt level.");
  for (size_t i = 0; i < values.size(); ++i) {
    TORCH_CHECK(!values[i].defined() || values[i].sizes() == here[i]->master.sizes(), "The saved master weight of ",
                session_->name_of(here[i]->param), " has shape ", values[i].sizes(), ", expected ", here[i]->master.sizes(),
                ".");
  }
}

void OptimizerStash::load_masters(const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  const auto here = table_.with_masters_in(handle()->param_groups());
  made_before_use_ = false;  // these values count for more than the weights
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    here[i]->mark_synced();  // the edits of before count no more
    here[i]->master.copy_(values[i]);
    here[i]->mark_loaded();
  }
}

void OptimizerStash::check_disjoint(const OptimizerStash& other) const {
  for (const TrainedParam* each : table_.all()) {
    TORCH_CHECK(!other.table_.find(each->param), "amp::scale_loss was given two optimizers that both train ",
                session_->name_of(each->param),
                "; its gradient would be unscaled twice. Pass only the optimizer that steps next.");
  }
}

// A fused step writes only weights that have a gradient. Masters that were written otherwise reach the model here. A write
// through data() shows in samples.
void OptimizerStash::copy_written_masters() {
  const at::NoGradGuard no_grad;
  for (TrainedParam* each : table_.with_masters()) {
    const bool is_stepped = (passes_.in_model() ? each->param : each->master).grad().defined();
    if (!each->master_was_written() && (is_stepped || samples_agree(each->param, each->master))) continue;
    each->param.copy_(each->master);
    each->mark_synced();
  }
}

void OptimizerStash::copy_masters_to_model() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> masters, params;
  std::unordered_set<const void*> tied;  // kernels must write each memory once
  for (TrainedParam* each : table_.with_masters()) {
    if (each->is_frozen_copy()) continue;
    if (each->is_tied && !tied.insert(each->param.const_data_ptr()).second) continue;
    if (!each->param.requires_grad()) each->frozen_copy = TensorVersion(each->master);
    // As without amp: a weight that is not stepped keeps its version, for graphs that have saved it, and a write to the master
    // through data() does not show.
    const bool shows = each->master.grad().defined() || each->master_was_written() || each->is_tied;
    const at::Tensor param = shows ? each->param : each->param.data();
    if (!param.is_non_overlapping_and_dense()) {  // kernels need dense memory
      param.copy_(each->master);
      continue;
    }
    masters.push_back(each->master);
    params.push_back(param);
  }
  kernels::multi_tensor_copy(masters, params);
}

// ---- a backward pass, and the gradients after it ----

bool OptimizerStash::uses_fused_path() const {
  const StepsMasters* optimizer = session_->has_masters() ? fused() : nullptr;
  return optimizer && !optimizer->materialize_master_grads();
}

void OptimizerStash::check_may_enter() {
  if (!sharded()) check_block_keeps_grads(passes_, unclaimed_, *session_);
  unclaimed_.record();
  check_claimed(unclaimed_.first([&](const at::Tensor& param) { return !master_of(param).defined(); }), "amp::scale_loss");
  check_no_open_grads("amp::scale_loss");
}

// A sharded optimizer has open gradients between delayed passes, too.
void OptimizerStash::check_no_open_grads(const char* caller) const {
  const auto* optimizer = sharded();
  if (!optimizer || passes_.has_delayed()) return;
  TORCH_CHECK(!optimizer->grad_shards()->has_open_grads(), caller,
              " found gradients of a sharded optimizer that no scale_loss block has scaled, beside gradients that a block has "
              "scaled. Differentiate each loss in a block; accumulate over blocks with delay_unscale in place of no_sync().");
}

void OptimizerStash::check_claimed(const at::Tensor& param, const char* caller) const {
  TORCH_CHECK(
      !param.defined(), caller, " found a gradient of ", session_->name_of(param),
      " from a scale_loss block that was not given this optimizer: it still carries the loss scale of that block. List all "
      "optimizers whose parameters the loss is to train, amp::scale_loss(loss, {opt_a, opt_b}), or drop the gradient with "
      "zero_grad() before.");
}

// The handle's parameters, with the model's in the place of masters.
std::vector<at::Tensor> OptimizerStash::trained_in_model() const {
  std::vector<at::Tensor> params = params_of(handle()->param_groups());
  for (at::Tensor& param : params) {
    if (const TrainedParam* entry = table_.find_stepped(param)) param = entry->param;
  }
  return params;
}

void OptimizerStash::add_trained(std::unordered_set<const at::TensorImpl*>& params) const {
  if (!handle()) return;
  for (const at::Tensor& param : trained_in_model()) params.insert(param.unsafeGetTensorImpl());
}

// Makes no masters: an optimizer gets its masters at its own first use (OPT-08).
void OptimizerStash::begin_unlisted_block() {
  if (!handle()) return;
  unclaimed_.begin_block(trained_in_model());
  if (const auto* optimizer = sharded()) optimizer->grad_shards()->begin_pass(/*held=*/true, /*watched=*/false);
}

void OptimizerStash::end_unlisted_block(const std::function<bool(const at::Tensor&)>& is_taken) {
  if (const auto* optimizer = sharded()) optimizer->grad_shards()->end_held_pass(/*is_delayed=*/false);
  inside_backward() ? unclaimed_.stop_watching() : unclaimed_.end_block(is_taken);
}

void OptimizerStash::enter_backward(const LossScaler& scaler, bool delayed) {
  if (const auto* optimizer = sharded()) return passes_.enter(optimizer->grad_shards(), delayed, scaler);
  passes_.enter(uses_fused_path(), scaler);
}

void OptimizerStash::exit_backward(LossScaler& scaler) {
  passes_.exit(scaler);
  unclaimed_.skip_own_changes();
}

void OptimizerStash::exit_backward_delayed(LossScaler& scaler) {
  passes_.exit_delayed(scaler);
  unclaimed_.skip_own_changes();
}

bool OptimizerStash::has_grads() const {
  if (const auto* optimizer = sharded(); optimizer && optimizer->grad_shards()->has_open_grads()) return true;
  const auto params = table_.all();
  return std::any_of(params.begin(), params.end(), [](const TrainedParam* each) { return each->param.grad().defined(); });
}

at::Tensor OptimizerStash::unreduced_param() const {
  if (!GradSync::any_is_unreduced()) return {};
  for (const TrainedParam* each : table_.all()) {
    if (has_unreduced_grad(each->param)) return each->param;
  }
  return {};
}

void OptimizerStash::check_grads() const {
  for (const TrainedParam* each : table_.all()) {
    const at::Tensor& grad = each->param.grad();
    TORCH_CHECK(!grad.defined() || !grad.is_sparse(), "The gradient of ", session_->name_of(each->param),
                " is sparse; amp unscales dense gradients. Make the embedding dense (sparse=false), or give it to an "
                "optimizer that amp does not handle, and divide its gradients by the loss scale before its step, which must be "
                "left out if they are not finite.");
    TORCH_CHECK(!grad.defined() || (fits(grad, each->param) && grad.is_floating_point() == each->param.is_floating_point()),
                "The parameter ", session_->name_of(each->param), " of shape ", each->param.sizes(), " on ",
                each->param.device(), " has a gradient of shape ", grad.sizes(), " and dtype ", grad.scalar_type(), " on ",
                grad.device(), ". Drop it with zero_grad(true), and run backward again.");
    TORCH_CHECK(!each->has_master() || each->master.sizes() == each->param.sizes(), "The parameter ",
                session_->name_of(each->param), " has the shape ", each->param.sizes(), ", and its master weight ",
                each->master.sizes(),
                ": set_data cannot change the shape of a parameter that has a master. Make a new parameter, "
                "and put it into the optimizer's group in place of the old one.");
  }
}

void OptimizerStash::add_params_to(OverlappingGrads& grads) const {
  if (session_->has_masters()) {
    for (const TrainedParam* each : table_.all()) grads.add(each->param);
  } else if (handle()) {
    for (const auto& group : handle()->param_groups()) grads.add(group.params());
  }
}

void OptimizerStash::abandon_backward() {
  passes_.in_pass() ? passes_.abandon() : zero_grad(/*set_to_none=*/true);
  unclaimed_.skip_own_changes();
}

void OptimizerStash::materialize_grads() {
  unclaimed_.record();
  passes_.materialize();
  unclaimed_.skip_own_changes();
}

double OptimizerStash::clip_grad_norm(double max_norm) {
  if (auto* optimizer = sharded()) return gate_.result.grad_norm = optimizer->grad_shards()->clip(max_norm);
  if (unclaimed_.record()) check_claimed(unclaimed_.first(), "amp::clip_grad_norm_");
  gate_.result.grad_norm = passes_.clip(handle()->param_groups(), max_norm);
  unclaimed_.skip_own_changes();
  return gate_.result.grad_norm;
}

NonfiniteGrad OptimizerStash::first_nonfinite() const {
  if (const auto* optimizer = sharded()) return detail::first_nonfinite(*optimizer->grad_shards(), *session_);
  return detail::first_nonfinite(table_, *session_);
}

std::vector<int> OptimizerStash::ranks_with_overflow(bool found_here) const {
  const auto* optimizer = sharded();
  return optimizer ? optimizer->grad_shards()->ranks_with_overflow(found_here) : std::vector<int>{};
}

void OptimizerStash::take_maximum(const at::Tensor& values, std::vector<std::shared_ptr<GradSync>>& done) const {
  if (const auto* optimizer = sharded()) return optimizer->grad_shards()->take_maximum(values);
  for (const TrainedParam* each : table_.all()) {
    auto sync = grad_sync_of(each->param);
    if (!sync || std::find(done.begin(), done.end(), sync) != done.end()) continue;
    sync->take_maximum(values);
    done.push_back(std::move(sync));
  }
}

void OptimizerStash::check_masters_are_here(const char* caller) const {
  TORCH_CHECK(!sharded(), caller,
              "() was called for a sharded optimizer, whose masters and gradients no single process has. Clip with "
              "amp::clip_grad_norm_(optimizer, max_norm); read the weights in the model, or masters in a checkpoint.");
}

void OptimizerStash::check_unscaled(const char* caller) const {
  const at::Tensor unreduced = unreduced_param();
  TORCH_CHECK(!unreduced.defined(), caller, "() was called while the gradient of ",
              unreduced.defined() ? session_->name_of(unreduced) : "",
              " is not summed over the ranks: all backward passes since the last reduction were within no_sync(), or after "
              "disable_allreduce(). Run the last pass outside of it, or drop the gradients with zero_grad().");
  if (!passes_.has_delayed()) return;
  for (const TrainedParam* each : table_.all()) {
    TORCH_CHECK(!each->param.grad().defined(), caller, "() was called while the gradient of ", session_->name_of(each->param),
                " still carries the loss scale: all passes since the last step had delay_unscale. Run the last pass without "
                "it, or drop the gradients with zero_grad().");
  }
}

void OptimizerStash::zero_grad(bool set_to_none) {
  adopt_new_params();
  for (const TrainedParam* each : table_.all()) clear_grad(each->param, set_to_none || sharded());
  for (TrainedParam* each : table_.with_masters()) each->drop_master_grad();
  forget_passes();
  if (!handle()) return;
  for (const auto& group : handle()->param_groups()) {
    for (const at::Tensor& param : group.params()) {  // a step uses the gradients of frozen ones, too
      if (!param.requires_grad()) clear_grad(param, set_to_none || sharded());
    }
  }
}

void OptimizerStash::forget_passes() {
  if (const auto* optimizer = sharded()) optimizer->grad_shards()->drop();
  passes_.forget();
  unclaimed_.forget();
}

// ---- a step ----

void OptimizerStash::skip_next_step(Overflow overflow, NonfiniteGrad own) {
  if (own.found()) {
    if (!own.is_reduced) own.ranks = overflow.grad.ranks;
    overflow.grad = std::move(own);
  }
  gate_.skip_next_step(overflow);
}

void OptimizerStash::forget_skip() {
  if (keeps_skip_ || !gate_.skips() || !handle()) return;
  gate_.forget_skip();
  zero_grad(/*set_to_none=*/true);
}

void OptimizerStash::throw_deferred_error() {
  const std::exception_ptr error = gate_.deferred_error();
  if (!error) return;
  for (const auto& stash : stashes_of(*session_)) {
    if (stash->gate_.deferred_error() == error) stash->gate_.defer_error(nullptr);
  }
  gate_.defer_error(nullptr);
  std::rethrow_exception(error);
}

void OptimizerStash::check_in_use() {
  gate_.check_in_use(*original_optimizer_);
  TORCH_CHECK(!master_init_.found_groups() || !handle()->param_groups().empty(),
              "The parameters of this optimizer handle were moved into another optimizer. Keep the handle that "
              "amp::initialize returned and move it only into another handle.");
}

bool OptimizerStash::begin_step(bool has_closure) {
  throw_deferred_error();
  check_in_use();
  if (!session_->enabled()) return true;
  TORCH_CHECK(!inside_backward(),
              "step() was called inside a scale_loss block, where the gradients are still scaled. Call it after the block, or "
              "call finish() on the ScaledLoss first.");
  adopt_new_params();
  gate_.check_closure(has_closure);
  if (!gate_.skips()) {
    check_unscaled("step");
    unclaimed_.record();
    check_claimed(unclaimed_.first(), "step()");
    passes_.settle();
    check_step_reads_grads(passes_, *session_);
    passes_.follow_model();
    if (session_->has_masters() || passes_.state() == GradPasses::State::collected) check_no_open_grads("step()");
  }
  if (!gate_.begin_step()) {
    passes_.end_skipped_step();
    return false;
  }
  update_masters_from_edits(/*may_be_restored=*/false);
  if (fused()) copy_written_masters();
  table_.match_layouts();
  for (TrainedParam* each : table_.with_masters()) each->expect_step();
  if (auto* optimizer = fused()) {
    optimizer->master_step.grads_in_model = passes_.in_model();
    optimizer->master_step.grad_scale = passes_.grad_scale();
  } else {
    custom_optimizer_check_.begin(table_.with_masters());
  }
  return true;
}

void OptimizerStash::finish_step() {
  if (!session_->enabled()) return;
  custom_optimizer_check_.check(*session_);
  if (!fused() || is_custom_class_)
    copy_masters_to_model();  // a class derived from a fused one may write masters after its base
  custom_optimizer_check_.end();
  for (TrainedParam* each : table_.with_masters()) each->mark_synced();
  passes_.end_step();
  unclaimed_.skip_own_changes();
}

void OptimizerStash::change_weights(const std::function<void()>& change) {
  check_in_use();
  if (!session_->enabled()) return change();
  adopt_new_params();
  update_masters_from_edits(/*may_be_restored=*/false);
  copy_written_masters();
  table_.match_layouts();
  change();
  for (TrainedParam* each : table_.with_masters()) each->mark_synced();
}

void check_captured_step(OptimizerStash& stash) {
  for (const auto& group : stash.handle()->param_groups()) {
    if (group.params().empty()) continue;
    for (const LossScaler& scaler : stash.session().scalers) check_capture(scaler, "step()", group.params().front().device());
  }
}

}  // namespace apex::amp::detail
