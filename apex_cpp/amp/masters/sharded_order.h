#pragma once

#include <apex_cpp/amp/masters/grad_order.h>
#include <apex_cpp/amp/optimizer_classes/sharded_optimizer.h>

#include <memory>

namespace apex::amp::detail {

/// Gradients of an optimizer that spreads them over processes: it takes them out of the model while backward runs, and keeps
/// its part of the sums, scaled, for its own step. All processes find the same overflow, so all skip or none.
class ShardedOrder final : public GradOrder {
 public:
  using GradOrder::GradOrder;

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

}  // namespace apex::amp::detail
