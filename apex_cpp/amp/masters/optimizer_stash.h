#pragma once

#include <apex_cpp/amp/masters/grad_passes.h>
#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/masters/step_gate.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/amp/session/amp_session.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

namespace apex::amp::detail {

class GradSync;
class OverlappingGrads;

/// amp's data beside one optimizer (Apex: the stash): the table of its parameters, the state of their gradients between
/// backward passes and a step, and the gate before the step. Owned by the optimizer's handle and shared with open ScaledLoss
/// blocks.
///
/// `first_nonfinite` and `clip_grad_norm` synchronise. `enter_backward` and `begin_step` synchronise for gradients that the
/// program wrote to, and `finish_step` as `CustomOptimizerCheck` says. The other methods do not. Tensors stay on their devices.
class OptimizerStash : public MasterProvider {
 public:
  /// `is_custom_class`: `kIsCustomOptimizer` of the optimizer's class.
  OptimizerStash(std::shared_ptr<Session> session, std::shared_ptr<OriginalOptimizer> original_optimizer, bool is_custom_class);

  Session& session() const { return *session_; }
  OriginalOptimizer& original_optimizer() { return *original_optimizer_; }
  torch::optim::Optimizer* handle() const { return original_optimizer_->handle; }

  // Parameters and masters.
  /// Gives new parameters their masters, as `MasterWeightInit::adopt_new_params` says, after removing parameters that the
  /// program has taken out of the groups of any of the session's optimizers. No-op if amp is disabled. If no group has changed,
  /// this only compares addresses. `once_trained`: parameters that get masters even if frozen, because a saved state has
  /// values.
  void adopt_new_params(const std::vector<at::Tensor>& once_trained = {});
  void check_new_group(const std::vector<at::Tensor>& params) const { master_init_.check_new_group(params); }
  /// Before a group with `params` is added: tells a fused optimizer which of them are masters that come back, so that it finds
  /// what it keeps of their group.
  void announce_masters(const std::vector<at::Tensor>& params) const;
  /// Marks the current gradients of `params` as pre-existing; the next unscale ignores them.
  void mark_grads_as_preexisting(const std::vector<at::Tensor>& params);
  void make_masters() override;
  at::Tensor master_of(const at::Tensor& param) const override;
  at::Tensor kept_master_of(const at::Tensor& param) const override;
  bool load_kept_master(const at::Tensor& param, const at::Tensor& value) override;
  /// Copies the program's edits of the model's weights since the last step into the masters; the next step would otherwise
  /// overwrite them. Edits are detected by version counter and memory, and on a CPU by 128 values of each weight: if they show
  /// a hidden write, all weights are compared. `weights_were_written` makes this compare all weights too. No synchronisation.
  /// `may_be_restored`: as in `TrainedParam::update_master_from_edits`.
  void update_masters_from_edits(bool may_be_restored = true) const;
  /// Copies masters that the program or a load has written to the model's weights. Call after `update_masters_from_edits`.
  void copy_written_masters();
  void drop_obsolete_master_backups() const override;
  void weights_were_written() override;
  /// The masters in the order of the handle's groups, without duplicates, with the program's edits. `model_params` returns
  /// their parameters in the same order.
  std::vector<at::Tensor> masters() const;
  std::vector<at::Tensor> model_params() const;
  /// The position of each of `masters()` among the parameters of all groups, not counting duplicates.
  std::vector<int64_t> master_positions() const;
  /// Sorts saved master values by position: one value for each of `masters()`, undefined if the parameter was frozen when
  /// saved. Parameters with a value that are frozen now get masters.
  std::vector<at::Tensor> arrange_saved_masters(const std::vector<at::Tensor>& values, const std::vector<int64_t>& positions);
  /// Errors: RuntimeError unless `values` has an entry for each master and every defined value has the master's shape.
  void check_masters_fit(const std::vector<at::Tensor>& values) const;
  /// Copies the defined values into the masters, in order. The values must pass `check_masters_fit`.
  void load_masters(const std::vector<at::Tensor>& values);
  /// Errors: RuntimeError naming a parameter that both this and `other`, of the same block, train.
  void check_disjoint(const OptimizerStash& other) const;

  // Around one backward pass (BWD-*), called by ScaledLoss.
  /// Call before `enter_backward`. Errors: RuntimeError for a native parameter with an unclaimed gradient (see UnclaimedGrads),
  /// which the pass would add to, and for gradients that no block has made or that were changed after one.
  void check_may_enter();
  /// Starts a pass at `scaler`'s scale. `delayed`: it ends with `exit_backward_delayed`.
  void enter_backward(const LossScaler& scaler, bool delayed);
  /// Whether any model parameter has a gradient.
  bool has_grads() const;
  /// Whether some gradients are still unreduced (DistributedDataParallel's no_sync). They stay scaled until a pass reduces
  /// them.
  bool waits_for_other_ranks() const { return unreduced_param().defined(); }
  /// Call before either exit. Errors: RuntimeError naming a parameter with a sparse gradient, or one of another shape, device
  /// or kind of number.
  void check_grads() const;
  /// Adds the model's parameters to `grads`: amp and autograd change their gradients in place.
  void add_params_to(OverlappingGrads& grads) const;
  /// Call after `backward` in the block: adds delayed gradients, as `GradPasses::join`.
  void join_delayed_passes(const LossScaler& scaler) { passes_.join(scaler); }
  void exit_backward(LossScaler& scaler);
  void exit_backward_delayed(LossScaler& scaler);
  /// Undoes a pass after an exception: restores the gradients from before it and drops the pass's. If the pass has already
  /// ended, its gradients are mixed with earlier ones, and all are dropped.
  void abandon_backward();
  bool inside_backward() const { return passes_.in_pass(); }

  // Around a block that lists other optimizers of the session, but not this one.
  void begin_unlisted_block();
  /// `is_taken`: as in `UnclaimedGrads::end_block`.
  void end_unlisted_block(const std::function<bool(const at::Tensor&)>& is_taken);
  /// Whether a block that lists this optimizer unscales the gradient of `param`.
  bool takes_grad_of(const at::Tensor& param) const { return table_.find(param) != nullptr; }
  /// Adds the model's parameters that this optimizer trains, also before its first use.
  void add_trained(std::unordered_set<const at::TensorImpl*>& params) const override;

  // Gradients that the next step will use.
  /// On the fused path, unscales the model's gradients into the masters, where the program can read and edit them; no-op while
  /// gradients are delayed. On Apex's path, drops or zeroes master gradients whose model gradients the program has dropped or
  /// zeroed. Synchronises only for gradients that the program wrote to.
  void materialize_grads();
  /// Clips the gradients to L2 norm `max_norm` and returns the norm before clipping. One synchronisation. Gradients with a
  /// non-finite norm are not changed.
  double clip_grad_norm(double max_norm);
  /// The first non-finite gradient of this optimizer; not found() if there is none. Synchronises.
  NonfiniteGrad first_nonfinite() const;
  /// For a sharded optimizer, the ranks that found an overflow (collective); for others, none.
  std::vector<int> ranks_with_overflow(bool found_here) const;
  /// The maximum over the processes that reduce the gradients of this optimizer, in place (collective). `done`: what reduced
  /// them before, and reduces no more.
  void take_maximum(const at::Tensor& values, std::vector<std::shared_ptr<GradSync>>& done) const;
  /// Errors: RuntimeError naming `caller` for a sharded optimizer, whose masters no single process has.
  void check_masters_are_here(const char* caller) const;
  /// Errors: RuntimeError naming `caller` if gradients are delayed and still scaled, or unreduced after passes within no_sync.
  void check_unscaled(const char* caller) const;
  /// OPT-06: zeroes or drops the gradients of all model parameters, and drops the masters' gradients.
  void zero_grad(bool set_to_none);
  /// Drops removed and delayed gradients of earlier passes.
  void forget_passes();

  // Around one step, called by the handle.
  /// Marks the next step to be skipped. The `own` non-finite gradient, of `first_nonfinite`, replaces the gradient in
  /// `overflow`.
  void skip_next_step(Overflow overflow, NonfiniteGrad own);
  /// Returns false if the step must be skipped. Errors: RuntimeError for a closure with master weights, a step inside a
  /// scale_loss block, only delayed gradients, gradients that the step would not read, a moved-from handle, or use of the
  /// original optimizer.
  bool begin_step(bool has_closure);
  /// Errors: as `CustomOptimizerCheck::check`.
  void finish_step();
  bool skips_next_step() const { return gate_.skips(); }
  /// After a saved state was loaded: cancels a pending skip, and then drops all gradients of this optimizer, since some have
  /// overflowed.
  void forget_skip();
  /// While on, `forget_skip` does nothing: a load that may be undone must leave the skip and the gradients.
  void keep_skip(bool on) { keeps_skip_ = on; }
  const StepResult& result() const { return gate_.result; }
  void set_loss_scale(double scale) { gate_.result.loss_scale = scale; }

  /// Calls `change`, which writes masters and their copies in the model outside of a step.
  void change_weights(const std::function<void()>& change);

  // Misuse.
  void defer_error(const std::exception_ptr& error) { gate_.defer_error(error); }
  /// Throws the error, once for all optimizers of the block.
  void throw_deferred_error();
  void retire() override { gate_.retire(); }
  bool is_retired() const override { return gate_.is_retired(); }
  /// Errors: as `StepGate::check_in_use`, and RuntimeError if the handle's parameters were moved away.
  void check_in_use();

 private:
  void remember_added_casts() const;
  StepsMasters* fused() const { return dynamic_cast<StepsMasters*>(handle()); }
  ShardedOptimizer* sharded() const { return dynamic_cast<ShardedOptimizer*>(handle()); }
  /// No-op while a pass runs or gradients are delayed, since a later pass unscales the gradients of all parameters.
  void forget_gone_params();
  bool uses_fused_path() const;
  /// Errors: RuntimeError if a sharded optimizer has gradients from outside its blocks.
  void check_no_open_grads(const char* caller) const;
  /// Errors: RuntimeError naming `param`, which has an unclaimed gradient, unless it is undefined.
  void check_claimed(const at::Tensor& param, const char* caller) const;
  void copy_masters_to_model();
  /// A parameter with an unreduced gradient; undefined if there is none.
  at::Tensor unreduced_param() const;
  std::vector<at::Tensor> trained_in_model() const;

  std::shared_ptr<Session> session_;
  std::shared_ptr<OriginalOptimizer> original_optimizer_;
  MasterTable table_;
  MasterWeightInit master_init_;
  GradPasses passes_;
  UnclaimedGrads unclaimed_;
  StepGate gate_;
  bool keeps_skip_ = false;
  bool is_custom_class_;
  mutable bool made_before_use_ = false;  // `make_masters` has made masters; no weights were compared with them since
  CustomOptimizerCheck custom_optimizer_check_;
};

/// The stashes of a session's optimizers.
std::vector<std::shared_ptr<OptimizerStash>> stashes_of(const Session& session);

/// Rejects a step in a CUDA graph capture if a loss scale of the session is dynamic, or with skip_nonfinite: the graph would
/// keep the captured scale and never skip. Needed because a program may capture the step without its scale_loss block. Errors:
/// as `check_capture`.
void check_captured_step(OptimizerStash& stash);

}  // namespace apex::amp::detail
