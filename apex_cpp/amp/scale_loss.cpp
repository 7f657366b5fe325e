#include <apex_cpp/amp/scale_loss.h>

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/gradients.h>

#include <algorithm>
#include <exception>
#include <unordered_set>
#include <utility>

namespace apex::amp {

using detail::OptimizerStash;
using detail::Session;

namespace {

std::vector<std::shared_ptr<OptimizerStash>> stashes_of(const OptimizerList& optimizers) {
  std::vector<std::shared_ptr<OptimizerStash>> stashes;
  for (auto* optimizer : optimizers) {
    TORCH_CHECK(optimizer, "amp::scale_loss was given a null optimizer.");
    const auto& stash = detail::require_stash(*optimizer, "scale_loss");
    if (std::find(stashes.begin(), stashes.end(), stash) == stashes.end()) stashes.push_back(stash);
  }
  return stashes;
}

void check_may_open(OptimizerStash& stash, const Session& session) {
  stash.throw_deferred_error();
  stash.check_in_use();
  TORCH_CHECK(&stash.session() == &session,
              "amp::scale_loss was given optimizers of different amp::initialize calls, which have different loss scales. "
              "Initialize them together, or scale one loss for each.");
  TORCH_CHECK(!stash.inside_backward(),
              "amp::scale_loss was called inside another scale_loss block of the same optimizer. End the first block (its "
              "closing brace, or finish()) before the next one.");
}

// A sharded optimizer steps on all its ranks or on none, even if other optimizers of the block have gradients that differ by
// rank. A sharded optimizer alone in its block finds the same overflow on every rank.
std::vector<int> ranks_with_overflow(const LossScaler& scaler, const std::vector<std::shared_ptr<OptimizerStash>>& stashes,
                                     bool found_here) {
  auto ranks = detail::ranks_with_overflow(scaler, found_here);
  if (!scaler.checks_overflow() || stashes.size() == 1) return ranks;
  for (const auto& stash : stashes) {
    const auto of_shards = stash->ranks_with_overflow(found_here || !ranks.empty());
    if (ranks.empty()) ranks = of_shards;
  }
  return ranks;
}

void warn_of_scaled_graph(const LossScaler& scaler, int64_t loss_id) {
  if (scaler.loss_scale() == 1.0) return;
  TORCH_WARN_ONCE("amp: backward(create_graph=true) of a scaled loss gives gradients that carry the loss scale, now ",
                  scaler.loss_scale(),
                  ", and a penalty made from them carries it, too. Make the penalty before the block: divide what "
                  "torch::autograd::grad({loss * scale}, …) returns by the scale, in float32, where scale is amp::loss_scaler(",
                  loss_id, ").loss_scale(); then give the loss with its penalty to amp::scale_loss.");
}

// As in a program that differentiates a copy of the model, and then copies the gradients.
void warn_of_grads_elsewhere(const LossScaler& scaler) {
  if (scaler.loss_scale() == 1.0) return;
  TORCH_WARN_ONCE(
      "amp: the scaled loss of a scale_loss block was differentiated, and no parameter of the block's optimizers got a "
      "gradient. Gradients that it gave other tensors, such as a copy of the model, carry the loss scale, now ",
      scaler.loss_scale(), ": divide them by it, or give the block the optimizer of these tensors.");
}

}  // namespace

ScaledLoss::ScaledLoss(const at::Tensor& loss, const OptimizerList& optimizers, const ScaleLossOptions& options)
    : options_(options), exceptions_at_entry_(std::uncaught_exceptions()) {
  TORCH_CHECK(loss.defined(), "amp::scale_loss was given an undefined loss.");
  stashes_ = stashes_of(optimizers);
  if (stashes_.empty()) detail::require_session("scale_loss");
  session_ = stashes_.empty() ? detail::current_session() : stashes_.front()->session().shared_from_this();
  for (const auto& stash : stashes_) check_may_open(*stash, *session_);
  session_->clear_cast_cache();
  if (!session_->enabled()) {
    scaled_ = loss;
    return;
  }
  TORCH_CHECK(!loss.is_complex(), "amp::scale_loss was given a loss of dtype ", loss.scalar_type(),
              ". Give it a real one, such as torch::real(loss) or loss.abs().");
  const LossScaler& scaler = session_->scaler(options_.loss_id());
  if (session_->patches_functions()) session_->custom_functions.look(loss, options_.loss_id());
  detail::check_capture(scaler, "amp::scale_loss", loss.device());
  if (session_->float8_history()) detail::check_float8_capture("amp::scale_loss", loss.device());
  const double scale = scaler.loss_scale();
  at::Tensor loss32;
  {
    const at::AutoGradMode records(at::GradMode::is_enabled() ||
                                   loss.requires_grad());  // as backward, which needs no grad mode
    loss32 = loss.to(at::kFloat);
    scaled_ = needs_amp() ? loss32 * scale : loss32;
  }
  if (!needs_amp()) return;
  loss_ = loss32.detach();
  watcher_ = detail::BackwardWatcher(loss, scaled_);
  enter();
}

ScaledLoss::ScaledLoss(ScaledLoss&& other) noexcept
    : loss_(std::move(other.loss_)),
      scaled_(std::move(other.scaled_)),
      watcher_(std::move(other.watcher_)),
      session_(std::move(other.session_)),
      stashes_(std::move(other.stashes_)),
      unlisted_(std::move(other.unlisted_)),
      options_(other.options_),
      exceptions_at_entry_(other.exceptions_at_entry_),
      open_(std::exchange(other.open_, false)) {}

ScaledLoss::~ScaledLoss() {
  if (!session_) return;         // moved from
  session_->clear_cast_cache();  // SL-13: also after an error
  if (!open_) return;
  try {
    if (std::uncaught_exceptions() > exceptions_at_entry_) {
      abandon();
    } else {
      finish();
    }
  } catch (...) {
    for (const auto& stash : stashes_) stash->defer_error(std::current_exception());
  }
}

// SL-04: without masters, overflow checks, a scale or a history of FP8 scales there is nothing to do.
bool ScaledLoss::needs_amp() const {
  const LossScaler& scaler = session_->scaler(options_.loss_id());
  return session_->has_masters() || scaler.checks_overflow() || scaler.loss_scale() != 1.0 || session_->float8_history();
}

void ScaledLoss::enter() {
  for (const auto& stash : stashes_) stash->adopt_new_params();
  for (size_t i = 0; i < stashes_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) stashes_[i]->check_disjoint(*stashes_[j]);
  }
  for (const auto& stash : stashes_) stash->check_may_enter();
  LossScaler& scaler = session_->scaler(options_.loss_id());
  try {
    for (const auto& stash : stashes_) stash->enter_backward(scaler, options_.delay_unscale());
    begin_unlisted_blocks();
  } catch (...) {  // no memory: the optimizers that have entered leave again
    end_unlisted_blocks();
    for (const auto& stash : stashes_) {
      if (stash->inside_backward()) stash->abandon_backward();
    }
    throw;
  }
  open_ = true;
}

void ScaledLoss::begin_unlisted_blocks() {
  for (const auto& other : detail::stashes_of(*session_)) {
    if (other->inside_backward() || std::count(stashes_.begin(), stashes_.end(), other)) continue;
    other->begin_unlisted_block();
    unlisted_.push_back(other);
  }
}

void ScaledLoss::end_unlisted_blocks() {
  const auto is_taken = [&](const at::Tensor& param) {
    return std::any_of(stashes_.begin(), stashes_.end(), [&](const auto& stash) { return stash->takes_grad_of(param); });
  };
  for (const auto& other : std::exchange(unlisted_, {})) other->end_unlisted_block(is_taken);
}

void ScaledLoss::backward(const at::Tensor& gradient, std::optional<bool> retain_graph, bool create_graph,
                          std::optional<at::TensorList> inputs) const {
  TORCH_CHECK(scaled_.defined(), "backward() was called on a ScaledLoss that was moved from.");
  const detail::BackwardScope scope(session_->cast_rules, create_graph);
  scaled_.backward(gradient, retain_graph, create_graph, inputs);
  if (create_graph && open_) warn_of_scaled_graph(session_->scaler(options_.loss_id()), options_.loss_id());
  // With create_graph the gradients have a graph of their own, and are changed only at the end of the block.
  if (create_graph || !session_->enabled()) return;
  separate_grads();
  if (!open_) return;
  for (const auto& stash : stashes_) stash->join_delayed_passes(session_->scaler(options_.loss_id()));
}

void ScaledLoss::finish() {
  if (session_) session_->clear_cast_cache();
  if (!open_) return;
  try {
    leave();
  } catch (...) {
    abandon();
    throw;
  }
  open_ = false;
  watcher_.stop();
}

bool ScaledLoss::has_grads() const {
  return std::any_of(stashes_.begin(), stashes_.end(), [](const auto& stash) { return stash->has_grads(); });
}

// Treats all optimizers together: each may train one side of a sum. Autograd's next pass also adds to gradients in place.
void ScaledLoss::separate_grads() const {
  detail::OverlappingGrads grads;
  for (const auto& stash : stashes_) stash->add_params_to(grads);
  grads.separate();
}

void ScaledLoss::leave() {
  const disable_casts casts_off;
  LossScaler& scaler = session_->scaler(options_.loss_id());
  end_unlisted_blocks();
  const bool has_grads = this->has_grads();
  watcher_.check(has_grads);
  if (!has_grads && watcher_.saw_scaled_loss()) warn_of_grads_elsewhere(scaler);
  for (const auto& stash : stashes_) stash->check_grads();
  separate_grads();
  const auto waits = [](const auto& stash) { return stash->waits_for_other_ranks(); };
  const bool waits_for_ranks = std::any_of(stashes_.begin(), stashes_.end(), waits);
  if (options_.delay_unscale() || waits_for_ranks) {
    for (const auto& stash : stashes_) stash->exit_backward_delayed(scaler);
    // Magnitudes that the other ranks do not know yet stay for the pass that exchanges them.
    if (!waits_for_ranks) end_float8_pass(false);
    return;
  }
  scaler.clear_overflow_state();
  for (const auto& stash : stashes_) stash->exit_backward(scaler);
  end_float8_pass(!options_.delay_overflow_check() && update_scale(scaler));
  for (const auto& stash : stashes_) stash->set_loss_scale(scaler.loss_scale());
}

// The weights of the block's optimizers, and those that no optimizer of the session trains.
detail::Float8History::Rows ScaledLoss::float8_rows() const {
  std::unordered_set<const at::TensorImpl*> of_others;
  for (const auto& stash : detail::stashes_of(*session_)) {
    if (std::count(stashes_.begin(), stashes_.end(), stash) == 0) stash->add_trained(of_others);
  }
  detail::Float8History::Rows rows;
  session_->parameter_names->for_each([&](const at::Tensor& param, const std::string& name) {
    const auto row = session_->float8_history()->row_of(name);
    if (row && of_others.count(param.unsafeGetTensorImpl()) == 0) rows.push_back(*row);
  });
  std::sort(rows.begin(), rows.end());  // in the same order on all ranks
  return rows;
}

void ScaledLoss::end_float8_pass(bool skipped) {
  const auto history = session_->float8_history();
  if (!history) return;
  const auto rows = float8_rows();
  if (skipped) return history->forget_pass(rows);
  const at::Tensor largest = history->largest(rows);
  std::vector<std::shared_ptr<detail::GradSync>> syncs;
  for (const auto& stash : stashes_) stash->take_maximum(largest, syncs);
  history->end_pass(rows, largest);
}

// Returns whether the step is skipped.
bool ScaledLoss::update_scale(LossScaler& scaler) {
  const bool found_here = scaler.overflow_found();
  const auto ranks = ranks_with_overflow(scaler, stashes_, found_here);
  if (!found_here && ranks.empty()) {
    scaler.update_scale(false);
    return false;
  }
  const bool in_half = session_->cast_rules && session_->cast_rules->low_type() == at::kHalf;
  detail::Overflow overflow{options_.loss_id(), scaler.loss_scale(), detail::has_nonfinite(loss_), in_half, {}};
  std::vector<detail::NonfiniteGrad> of_stashes;  // before the scale changes: there may be no memory to search the gradients
  for (const auto& stash : stashes_) of_stashes.push_back(stash->first_nonfinite());
  const auto first = std::find_if(of_stashes.begin(), of_stashes.end(), [](const auto& grad) { return grad.found(); });
  if (first != of_stashes.end()) overflow.grad = *first;
  if (!overflow.grad.is_reduced) overflow.grad.ranks = ranks;
  try {
    scaler.update_scale(true);
  } catch (c10::Error& error) {
    error.add_context("In the scale_loss block of loss " + std::to_string(overflow.loss_id) + ": " + describe(overflow.grad) +
                      (overflow.nonfinite_loss ? "; the loss itself is not finite." : "; the loss is finite."));
    throw;
  }
  for (size_t i = 0; i < stashes_.size(); ++i) stashes_[i]->skip_next_step(overflow, of_stashes[i]);
  if (scaler.skipped_in_a_row() == scaler.skip_warning()) warn_of_skips(scaler, overflow);
  return true;
}

void ScaledLoss::abandon() {
  open_ = false;
  watcher_.stop();
  end_unlisted_blocks();
  for (const auto& stash : stashes_) stash->abandon_backward();
  end_float8_pass(true);
}

}  // namespace apex::amp
