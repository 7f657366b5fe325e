#pragma once

#include <apex_cpp/amp/masters/unscale_path.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/tensor_version.h>

#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

namespace apex::amp::detail {

/// The state of one optimizer's gradients between backward passes and a step. All transitions go through this class. "The path"
/// is the UnscalePath that was chosen for this step; "delayed" gradients are scaled gradients of passes with `delay_unscale`.
///
/// | from          | method       | to            | effect on gradients                                                |
/// |---------------|--------------|---------------|--------------------------------------------------------------------|
/// | idle          | enter        | in_pass       | chooses the path of this step, which removes earlier gradients     |
/// | collected     | enter        | in_pass       | the path removes earlier gradients from the model                  |
/// | delayed       | enter        | in_later_pass | removes delayed gradients, except those that the pass is to reduce |
/// | in_pass       | exit         | collected     | the path collects the pass's gradients                             |
/// | in_later_pass | exit         | collected     | adds delayed gradients to the pass's; the path collects the sums   |
/// | in_pass       | exit_delayed | delayed       | leaves the pass's gradients in the model, scaled                   |
/// | in_later_pass | exit_delayed | delayed       | adds delayed gradients to the pass's; leaves the sums in the model |
/// | in_pass       | abandon      | collected     | the path restores what it removed; masters keep their gradients    |
/// | in_later_pass | abandon      | delayed       | restores the delayed gradients                                     |
/// | collected     | materialize  | collected     | switches from the fused to the materialized path until the step    |
/// | collected     | end_step     | idle          | drops master gradients; the step has used them                     |
/// | delayed       | end_step     | delayed       | none: a skipped step leaves delayed gradients for a later pass     |
/// | in_pass       | forget       | in_pass       | drops the gradients of earlier passes                              |
/// | in_later_pass | forget       | in_pass       | drops the delayed gradients                                        |
/// | any other     | forget       | idle          | drops the gradients of all passes                                  |
class GradPasses {
 public:
  enum class State {
    idle,           ///< no pass since the last step
    in_pass,        ///< a pass runs
    collected,      ///< the path has the gradients of all passes
    delayed,        ///< passes with delay_unscale have left scaled gradients in the model
    in_later_pass,  ///< a pass runs, whose gradients are added to delayed ones
  };

  explicit GradPasses(MasterTable& table)
      : table_(table), materialized_(table), fused_(table), sharded_(table), delayed_(table) {}

  State state() const { return state_; }
  bool in_pass() const { return state_ == State::in_pass || state_ == State::in_later_pass; }
  /// Whether there are delayed gradients.
  bool has_delayed() const { return state_ == State::delayed || state_ == State::in_later_pass; }

  /// Starts a pass at `scaler`'s scale. `use_fused_path`: the path if the state is idle.
  void enter(bool use_fused_path, const LossScaler& scaler);
  /// Starts a pass of a sharded optimizer. The gradients of a delayed pass, and of a pass after delayed passes, stay in the
  /// model while it runs. `delayed`: the pass ends with `exit_delayed`.
  void enter(std::shared_ptr<GradShards> shards, bool delayed, const LossScaler& scaler);
  /// After backward, inside the block: adds delayed gradients to the pass's. As in Apex, a program that then writes gradients
  /// in this block writes the sums.
  void join(const LossScaler& scaler);
  void exit(LossScaler& scaler);
  void exit_delayed(LossScaler& scaler);
  void abandon();
  /// Writes unscaled gradients into the masters, if the path is fused and the state is collected. On the materialized path,
  /// calls `follow_model`.
  void materialize();
  /// Calls `MaterializedUnscale::follow_model` if the materialized path has collected gradients; else no-op, since the step
  /// reads the model's gradients.
  void follow_model();
  /// Before gradients are used outside of a block: calls `FusedUnscale::settle` if no pass waits for its step.
  void settle() {
    if (state_ == State::idle && path_ == &fused_) fused_.settle();
  }
  void end_step();
  /// As `end_step`, and marks the current gradients as read: changes by the program since the block do not matter after a skip.
  void end_skipped_step();
  void forget();

  /// Parameters whose gradient in the model is not what a step reads: it reads the master's gradient, or scales the model's.
  MasterTable::Params params_with_indirect_grads() const;

  /// A parameter that was added after the last pass, with a gradient that the step would read as it is, and which may carry the
  /// pass's loss scale; null if there is none. Synchronises only for such gradients.
  const TrainedParam* added_with_scaled_grad() const;

  /// For the next step: whether gradients are in the model rather than in the masters, and the factor to multiply them by.
  bool in_model() const { return fused_.pending(); }
  double grad_scale() const { return path_ == &fused_ ? fused_.grad_scale() : 1.0; }
  /// Clips the gradients that a step of these groups would use to L2 norm `max_norm`. Returns the norm before clipping.
  double clip(const ParamGroups& groups, double max_norm);

 private:
  void release_recorded_values();
  /// The path that handles the current pass.
  UnscalePath& current_path();
  bool is_sharded() const { return path_ == &sharded_; }

  State state_ = State::idle;
  MasterTable& table_;
  MaterializedUnscale materialized_;
  FusedUnscale fused_;
  ShardedUnscale sharded_;
  DelayedUnscale delayed_;
  UnscalePath* path_ = &materialized_;  // of all passes since the last step
};

/// Gradients that one optimizer's parameters got in a scale_loss block that does not list this optimizer. They keep the block's
/// loss scale, since nothing unscales them; the program must drop them before a step or another block. Host data, no
/// synchronisation.
class UnclaimedGrads {
 public:
  using Params = std::vector<at::Tensor>;

  /// Starts a block that does not list the optimizer of `params`.
  void begin_block(const Params& params);
  /// Ends the block. `is_taken`: whether the block unscales the gradient of a parameter, for another optimizer.
  void end_block(const std::function<bool(const at::Tensor&)>& is_taken);
  /// Inside the other block, before the optimizer itself changes its gradients: records those that the other block has given so
  /// far. Returns whether there are any.
  bool record();
  /// The optimizer itself has changed its gradients, by a block of its own or by a clip: these changes are not the other
  /// block's.
  void skip_own_changes();
  /// The optimizer's own block goes on after the other one.
  void stop_watching() { before_.clear(); }
  /// The first parameter that passes `filter` and still has its unclaimed gradient; undefined if there is none.
  at::Tensor first(const std::function<bool(const at::Tensor&)>& filter = {}) const;
  /// All parameters that still have their unclaimed gradients.
  std::unordered_set<const at::TensorImpl*> params() const;
  /// Drops the records of parameters that the optimizer no longer has.
  void forget(const Params& gone);
  /// Drops all records, after the gradients were zeroed or dropped.
  void forget() {
    unclaimed_.clear();
    skip_own_changes();
  }

 private:
  struct Gradient {
    at::Tensor param;
    TensorVersion version;
    bool had_own_block = false;  // inside the other block: the program may have zeroed the gradient since
    bool is_unchanged() const { return version.matches(param.grad()); }
    /// Whether the other block has given a gradient. Synchronises only if `had_own_block`.
    bool was_given() const;
  };
  std::vector<Gradient> before_, unclaimed_;
};

// Detects gradients in the model that no scale_loss block has made, or that the program changed after a block. With masters a
// step does not read the model's gradients, so the step would ignore these values. Zeros, and old gradients after a step, are
// allowed.

/// Errors: RuntimeError naming the parameter and the remedy. Synchronises only for gradients that were written since the last
/// block.
void check_step_reads_grads(const GradPasses& passes, const Session& session);
/// The same check before a block, which would replace these gradients. Gradients of other optimizers' blocks are no error here:
/// the block drops them, as in Apex.
void check_block_keeps_grads(const GradPasses& passes, const UnclaimedGrads& unclaimed, const Session& session);

}  // namespace apex::amp::detail
