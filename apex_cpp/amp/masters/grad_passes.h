#pragma once

#include <apex_cpp/amp/masters/delayed_passes.h>
#include <apex_cpp/amp/masters/fused_order.h>
#include <apex_cpp/amp/masters/materialized_order.h>
#include <apex_cpp/amp/masters/sharded_order.h>

#include <memory>

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
  /// As `MaterializedOrder::follow_model`. Elsewhere a step reads the model's gradients as they are.
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
  GradOrder& taker();
  bool is_sharded() const { return order_ == &sharded_; }

  State state_ = State::rest;
  MasterTable& table_;
  MaterializedOrder materialized_;
  FusedOrder fused_;
  ShardedOrder sharded_;
  DelayedPasses delayed_;
  GradOrder* order_ = &materialized_;  // of the passes since the last step
};

}  // namespace apex::amp::detail
