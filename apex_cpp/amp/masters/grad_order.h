#pragma once

#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>

namespace apex::amp::detail {

/// One way to take the gradients of a table's parameters through a backward pass. Tensors stay on their devices.
class GradOrder {
 public:
  explicit GradOrder(MasterTable& table) : table_(table) {}
  virtual ~GradOrder() = default;
  GradOrder(const GradOrder&) = delete;
  GradOrder& operator=(const GradOrder&) = delete;

  /// Puts gradients aside, so that the pass starts from nothing.
  virtual void enter() = 0;
  /// The pass was made at `scaler`'s scale: its gradients join what was put aside.
  virtual void exit(LossScaler& scaler) = 0;
  /// Gives back what was put aside in place of the pass's gradients.
  virtual void abandon() = 0;

 protected:
  MasterTable& table_;
};

}  // namespace apex::amp::detail
