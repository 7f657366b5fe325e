#pragma once

#include <apex_cpp/amp/masters/unscale_path.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/tensor_version.h>

#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

namespace apex::amp::detail {

/// Where one optimizer's gradients are on their way from backward passes to a step. All that moves them on goes through here:
///
/// | from      | by           | to        | gradients                                                                   |
/// |-----------|--------------|-----------|-----------------------------------------------------------------------------|
/// | rest      | enter        | pass      | the order of this step is chosen, and puts them aside                       |
/// | collected | enter        | pass      | the order puts them aside                                                   |
/// | waiting   | enter        | further   | the scaled ones are put aside, or stay where the pass reduces the sums      |
/// | pass      | exit         | collected | the order takes them                                                        |
/// | further   | exit         | collected | they join the scaled ones, and the order takes the sums                     |
/// | pass      | exit_delayed | waiting   | they stay as they are, scaled                                               |
/// | further   | exit_delayed | waiting   | they join the scaled ones                                                   |
/// | pass      | abandon      | collected | what the order put aside comes back                                         |
/// | further   | abandon      | waiting   | the scaled ones that were put aside come back                               |
/// | collected | materialize  | collected | move from the fused order to Apex's, which holds until the step             |
/// | collected | end_step     | rest      | are used up                                                                 |
/// | waiting   | end_step     | waiting   | stay: delayed passes end in the order in which they began                   |
/// | pass, further | forget   | pass      | of before the pass: are dropped                                             |
/// | any other | forget       | rest      | are dropped                                                                 |
class GradPasses {
 public:
  enum class State {
    rest,       ///< no pass since the last step
    pass,       ///< one runs
    collected,  ///< the order has the gradients of all passes
    waiting,    ///< passes with delay_unscale have left theirs, scaled, in the model
    further,    ///< a pass runs whose gradients are to join those
  };

  explicit GradPasses(MasterTable& table)
      : table_(table), materialized_(table), fused_(table), sharded_(table), delayed_(table) {}

  State state() const { return state_; }
  bool inside() const { return state_ == State::pass || state_ == State::further; }
  /// Whether gradients of passes with delay_unscale are still scaled.
  bool waiting() const { return state_ == State::waiting || state_ == State::further; }

  /// `scaler`: that of the pass.
  void enter(bool in_fused_order, const LossScaler& scaler);
  /// The same for an optimizer that spreads its gradients. Those of a pass that is to end with exit_delayed, or that adds to
  /// one, are left in the model while it runs.
  void enter(std::shared_ptr<GradShards> shards, bool delayed, const LossScaler& scaler);
  /// The pass has run, in its block: its gradients are joined by those of passes with delay_unscale, as in Apex, where a
  /// program that writes gradients in the last block writes sums.
  void join(const LossScaler& scaler);
  void exit(LossScaler& scaler);
  void exit_delayed(LossScaler& scaler);
  void abandon();
  /// Does `follow_model` in Apex's order, and nothing before any pass and before the last of several with delay_unscale.
  void materialize();
  /// As `MaterializedUnscale::follow_model`. Elsewhere a step reads the model's gradients as they are.
  void follow_model();
  void end_step();
  /// The same without a step: whatever the program has made of the gradients since their block, nobody is to read them.
  void end_skipped_step();
  void forget();

  /// Gradients of these parameters are not what a step reads as they stand: it reads those of masters, or scales them.
  MasterTable::Params not_read_as_they_are() const;

  /// As a step is to find them: in the model rather than in masters, and multiplied by this.
  bool in_model() const { return fused_.pending(); }
  double grad_scale() const { return order_ == &fused_ ? fused_.grad_scale() : 1.0; }
  /// Scales the gradients that a step of these groups would use so that their L2 norm is at most `max_norm`. Returns the norm
  /// from before.
  double clip(const ParamGroups& groups, double max_norm);

 private:
  void forget_marked_values();
  /// What takes the pass that is open.
  UnscalePath& taker();
  bool is_sharded() const { return order_ == &sharded_; }

  State state_ = State::rest;
  MasterTable& table_;
  MaterializedUnscale materialized_;
  FusedUnscale fused_;
  ShardedUnscale sharded_;
  DelayedPasses delayed_;
  UnscalePath* order_ = &materialized_;  // of the passes since the last step
};

/// Gradients that the parameters of one optimizer get in a scale_loss block that was not given this optimizer. They carry the
/// block's loss scale and nobody unscales them, so that a step or a further block must find them gone. Host data, no
/// synchronisation.
class UnclaimedGrads {
 public:
  using Params = std::vector<at::Tensor>;

  /// A block begins that was not given the optimizer of these parameters.
  void begin_block(const Params& params);
  /// It has ended. `is_taken` answers whether it unscales the gradient of a parameter, for another optimizer.
  void end_block(const std::function<bool(const at::Tensor&)>& is_taken);
  /// The optimizer begins a block of its own inside the other one.
  void end_watch() { before_.clear(); }
  /// A parameter whose stray gradient is as the block left it, of those that `counts`; undefined if there is none.
  at::Tensor first(const std::function<bool(const at::Tensor&)>& counts = {}) const;
  /// All parameters whose stray gradients are as the block left them.
  std::unordered_set<const at::TensorImpl*> params() const;
  /// Those of parameters that the optimizer has no more.
  void forget(const Params& gone);
  /// The gradients were zeroed or dropped.
  void forget() { unclaimed_.clear(); }

 private:
  struct Gradient {
    at::Tensor param;
    TensorVersion trace;
    bool still() const { return trace.still(param.grad()); }
  };
  std::vector<Gradient> before_, unclaimed_;
};

}  // namespace apex::amp::detail

// Gradients in the model that no scale_loss block has made, or that were changed after one. Where parameters have masters these
// are not what a step reads, so that a program which is right without amp would train nothing, or by other values. Zeros, and
// gradients that stay after a step, are no error.
namespace apex::amp::detail {

/// Errors: RuntimeError naming the parameter and what to do in place. Synchronises only where a gradient is not as the last
/// block left it.
void check_step_reads_grads(const GradPasses& passes, const Session& session);
/// The same before a block, which would put its own gradients in their place. Those that other optimizers' blocks have left are
/// dropped, as Apex does.
void check_block_keeps_grads(const GradPasses& passes, const UnclaimedGrads& unclaimed, const Session& session);

}  // namespace apex::amp::detail
