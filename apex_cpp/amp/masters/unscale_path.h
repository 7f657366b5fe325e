#pragma once

#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace apex::amp::detail {

/// One way to take the gradients of a table's parameters through a backward pass. Tensors stay on their devices.
class UnscalePath {
 public:
  explicit UnscalePath(MasterTable& table) : table_(table) {}
  virtual ~UnscalePath() = default;
  UnscalePath(const UnscalePath&) = delete;
  UnscalePath& operator=(const UnscalePath&) = delete;

  /// Puts gradients aside, so that the pass starts from nothing.
  virtual void enter() = 0;
  /// The pass was made at `scaler`'s scale: its gradients join what was put aside.
  virtual void exit(LossScaler& scaler) = 0;
  /// Gives back what was put aside in place of the pass's gradients.
  virtual void abandon() = 0;

 protected:
  MasterTable& table_;
};

/// What gradients of L2 norm `norm` are multiplied by so that it is at most `max_norm`: `torch::nn::utils::clip_grad_norm_`'s
/// coefficient, in float32 as there, at most 1, and 1 for a norm that is not finite.
double clip_coefficient(double norm, double max_norm);

/// Scales the gradients in place so that their total L2 norm is at most `max_norm`, and returns the norm from before, one
/// synchronisation. With the bits of `torch::nn::utils::clip_grad_norm_` where all gradients are float32 and the norm is
/// finite.
double clip_in_place(const std::vector<at::Tensor>& grads, double max_norm);

/// Gradients in the fused order (materialize_master_grads=false): they stay in the model, scaled, until one pass over memory
/// unscales, clips, updates and copies (BWD-03, BWD-30). This keeps the scale that they have in common, and what clipping
/// multiplies them by.
///
/// Gradients that a step has used stay where they are. Those of model params count no more then, like master gradients in
/// Apex's order; native ones do until zero_grad.
class FusedUnscale final : public UnscalePath {
 public:
  using UnscalePath::UnscalePath;

  void enter() override;
  /// Brings all gradients to a common scale and looks for overflow where the scale is dynamic. Inf and NaN that were put aside
  /// are not reported again.
  void exit(LossScaler& scaler) override;
  void abandon() override;

  /// Whether gradients wait in the model for a step.
  bool pending() const { return pending_; }
  /// What gradients are to be multiplied by: 1 / scale, with clipping in it.
  double grad_scale() const { return clip_ / scale_; }
  /// Has the step multiply by what makes their norm at most `max_norm`. Returns the norm from before; waits for their device.
  double clip(double max_norm);
  /// Unscales them, clipped, into the masters and in place, as Apex's order would have it.
  void unscale();

  /// A step used the gradients, or was skipped on their account.
  void consume() { pending_ = false; }
  /// The gradients were zeroed.
  void reset();

 private:
  double grad_norm();

  double scale_ = 1.0;  // that gradients have (Apex: most_recent_scale)
  double clip_ = 1.0;
  bool pending_ = false;  // Apex: scale_set_by_backward
  at::Tensor norm_;       // float32, one element: of all gradients before clipping, if the check has found it
};

/// Apex's order (BWD-*): at the end of every pass, gradients are unscaled and looked at for overflow: those of model params
/// into their masters, where they add up over passes and can be edited, those of native params in place.
class MaterializedUnscale final : public UnscalePath {
 public:
  using UnscalePath::UnscalePath;

  void enter() override;
  void exit(LossScaler& scaler) override;
  /// The gradients of model params are in the masters: those in the model are dropped.
  void abandon() override;

  /// Remembers the model's gradients, of which the masters have the values.
  void mark_grads();
  /// What the program has dropped or zeroed in the model since, it means for the masters too; where the model has no gradient
  /// left, also for those of earlier passes. Synchronises only where a gradient was written from outside.
  void follow_model();

 private:
  bool model_has_grads() const;
  void unscale_into_masters(LossScaler& scaler);
  void unscale_native(LossScaler& scaler);
};

/// Gradients of an optimizer that spreads them over processes: it takes them out of the model while backward runs, and keeps
/// its part of the sums, scaled, for its own step. All processes find the same overflow, so all skip or none.
class ShardedUnscale final : public UnscalePath {
 public:
  using UnscalePath::UnscalePath;

  /// A pass at this scaler's scale begins. `held`: its gradients stay in the model, for a later one to add to.
  void begin(std::shared_ptr<GradShards> shards, bool held, const LossScaler& scaler);
  void end_held() { shards_->end_held_pass(); }

  void enter() override {}
  /// Where the scaler looks for overflow, Inf or NaN that this pass brings on any process is one. What an earlier pass of the
  /// step brought has moved the scale already (SCALE-06).
  void exit(LossScaler& scaler) override;
  void abandon() override { shards_->abandon_pass(); }

  /// A step has used the sums, or they are not wanted.
  void drop();

 private:
  std::shared_ptr<GradShards> shards_;
};

/// A pass after ones with `delay_unscale` (SL-07..09): their gradients are in the model's parameters, scaled, and this one's
/// are to join them there, whatever order then unscales them all. Where gradients are reduced over processes in the backward
/// pass, they join in it already, since the sum is what is to be reduced.
class DelayedPasses final : public UnscalePath {
 public:
  using UnscalePath::UnscalePath;

  /// The pass is to be made at `scale`. To be called before `enter`.
  void expect_scale(double scale) { next_scale_ = scale; }
  void enter() override;
  /// Adds what was put aside to the pass's gradients, which are in `scale`.
  void join(double scale);
  /// The same where it was not done yet.
  void exit(LossScaler& scaler) override;
  /// Gradients that the pass may have added to are dropped.
  void abandon() override;

  /// From now on, the parameters' gradients wait at this scale.
  void wait(double scale) { scale_ = scale; }

 private:
  double scale_ = 1.0;
  double next_scale_ = 1.0;
};

}  // namespace apex::amp::detail
