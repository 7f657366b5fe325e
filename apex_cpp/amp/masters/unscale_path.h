#pragma once

#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace apex::amp::detail {

/// A strategy that moves the gradients of a table's parameters through a backward pass. Tensors stay on their devices.
class UnscalePath {
 public:
  explicit UnscalePath(MasterTable& table) : table_(table) {}
  virtual ~UnscalePath() = default;
  UnscalePath(const UnscalePath&) = delete;
  UnscalePath& operator=(const UnscalePath&) = delete;

  /// Before the pass: removes existing gradients from the model, so that the pass starts without gradients.
  virtual void enter() = 0;
  /// After the pass, which ran at `scaler`'s scale: combines its gradients with the removed ones.
  virtual void exit(LossScaler& scaler) = 0;
  /// After an exception: drops the pass's gradients and restores the removed ones.
  virtual void abandon() = 0;

 protected:
  MasterTable& table_;
};

/// The factor that clips gradients of L2 norm `norm` to `max_norm`: the float32 coefficient of
/// `torch::nn::utils::clip_grad_norm_`, at most 1; 1 for a non-finite norm.
double clip_coefficient(double norm, double max_norm);

/// Scales the gradients in place so that their total L2 norm is at most `max_norm`, and returns the norm before clipping. One
/// synchronisation. For float32 gradients with a finite norm, the bits are those of `torch::nn::utils::clip_grad_norm_`.
double clip_in_place(const std::vector<at::Tensor>& grads, double max_norm);

/// The fused path (materialize_master_grads=false): gradients stay in the model, scaled, until the step unscales, clips,
/// updates and copies in one pass over memory (BWD-03, BWD-30). Keeps the gradients' common scale and the clipping factor.
///
/// Gradients stay in the model after a step. The next pass drops those of model params, as Apex drops master gradients, and
/// adds to those of native parameters until zero_grad.
class FusedUnscale final : public UnscalePath {
 public:
  using UnscalePath::UnscalePath;

  void enter() override;
  /// Converts all gradients to a common scale, and checks the pass's gradients for overflow if `scaler.checks_overflow()`. Inf
  /// and NaN in earlier gradients are not reported again.
  void exit(LossScaler& scaler) override;
  void abandon() override;

  /// Whether the model has scaled gradients that no step has used.
  bool pending() const { return pending_; }
  /// The step multiplies gradients by this: the clipping factor divided by the scale.
  double grad_scale() const { return clip_ / scale_; }
  /// Makes the step clip the gradients to L2 norm `max_norm`. Returns the norm before clipping. Synchronises.
  double clip(double max_norm);
  /// Switches to the materialized path: writes unscaled and clipped gradients into masters, and in place for native parameters.
  void unscale();

  /// Before a step without a pass since the last one: takes gradients as they are, the program's own, unless native ones of
  /// earlier passes are left.
  void settle();
  /// A step has used the gradients or was skipped because of them.
  void consume() { pending_ = false; }
  /// The gradients were zeroed.
  void reset();

 private:
  bool were_grads_changed() const;
  double grad_norm();

  size_t num_params_ = 0;  // in the table at the end of the pass
  double scale_ = 1.0;     // of the gradients in the model (Apex: most_recent_scale)
  double clip_ = 1.0;      // clipping factor that the step applies
  bool pending_ = false;   // Apex: scale_set_by_backward
  at::Tensor norm_;        // of all gradients before clipping: float32, one element; undefined if not yet computed
};

/// Apex's path (BWD-*): the end of every pass unscales gradients and checks them for overflow. Gradients of model params are
/// unscaled into their masters, where they accumulate and the program can edit them; gradients of native parameters in place.
class MaterializedUnscale final : public UnscalePath {
 public:
  using UnscalePath::UnscalePath;

  void enter() override;
  void exit(LossScaler& scaler) override;
  /// Drops the model's gradients of model params: earlier passes are accumulated in the masters.
  void abandon() override;

  /// Records the model's gradients, whose values the masters now have.
  void record_grads();
  /// Drops or zeroes the master gradients whose model gradients the program has dropped or zeroed since. If no model gradient
  /// is left, drops the master gradients of earlier passes too. Synchronises only for gradients that the program wrote to.
  void follow_model();

 private:
  bool model_has_grads() const;
  void show_earlier_grads();
  void unscale_into_masters(LossScaler& scaler);
  void unscale_native(LossScaler& scaler);
};

/// The path of a sharded optimizer's gradients: the optimizer takes them out of the model while backward runs, and keeps its
/// part of the scaled sums for its step. All processes find the same overflow, so all skip a step or none does.
class ShardedUnscale final : public UnscalePath {
 public:
  using UnscalePath::UnscalePath;

  /// Starts a pass at `scaler`'s scale. `held`: its gradients stay in the model, and a later pass adds to them.
  void begin(std::shared_ptr<GradShards> shards, bool held, const LossScaler& scaler);
  void end_held() { shards_->end_held_pass(/*is_delayed=*/true); }

  void enter() override {}
  /// If `scaler.checks_overflow()`, reports Inf or NaN that this pass added on any process. Inf and NaN of earlier passes have
  /// already lowered the scale (SCALE-06).
  void exit(LossScaler& scaler) override;
  void abandon() override { shards_->abandon_pass(); }

  /// Drops the sums, after a step or `zero_grad`.
  void drop();

 private:
  std::shared_ptr<GradShards> shards_;
};

/// The path of a pass after passes with `delay_unscale` (SL-07..09): adds this pass's gradients to the delayed, scaled
/// gradients in the model, before another path unscales the sums. Gradients that DistributedDataParallel has not reduced yet
/// stay in the model during the pass, because the sum must be reduced.
class DelayedUnscale final : public UnscalePath {
 public:
  using UnscalePath::UnscalePath;

  /// Sets the scale of the next pass. Call before `enter`.
  void expect_scale(double scale) { next_scale_ = scale; }
  double expected_scale() const { return next_scale_; }
  void enter() override;
  /// Adds the delayed gradients to the pass's gradients, which have the scale `scale`.
  void join(double scale);
  /// Calls `join` for gradients that were not joined yet.
  void exit(LossScaler& scaler) override;
  /// Restores the delayed gradients. Drops unreduced gradients that stayed in the model, since the pass may have added to them.
  void abandon() override;

  /// Records the scale of the delayed gradients in the model.
  void set_scale(double scale) { scale_ = scale; }

 private:
  double scale_ = 1.0;       // of the delayed gradients
  double next_scale_ = 1.0;  // of the pass that runs, or of the last one
};

}  // namespace apex::amp::detail
