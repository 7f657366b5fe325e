#pragma once

#include <apex_cpp/amp/masters/grad_order.h>

namespace apex::amp::detail {

/// Apex's order (BWD-*): at the end of every pass, gradients are unscaled and looked at for overflow: those of model params
/// into their masters, where they add up over passes and can be edited, those of native params in place.
class MaterializedOrder final : public GradOrder {
 public:
  using GradOrder::GradOrder;

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

}  // namespace apex::amp::detail
