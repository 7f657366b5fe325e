#pragma once

#include <apex_cpp/amp/masters/grad_order.h>

namespace apex::amp::detail {

/// A pass after ones with `delay_unscale` (SL-07..09): their gradients are in the model's parameters, scaled, and this one's
/// are to join them there, whatever order then unscales them all. Where gradients are reduced over processes in the backward
/// pass, they join in it already, since the sum is what is to be reduced.
class DelayedPasses final : public GradOrder {
 public:
  using GradOrder::GradOrder;

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
