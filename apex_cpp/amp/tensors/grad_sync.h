#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

// Gradients that are reduced over processes while a backward pass runs, as DistributedDataParallel has it: what amp asks of
// whoever reduces them. Without any, asking costs one read of a counter. From any thread.
namespace apex::amp::detail {

class GradSync {
 public:
  virtual ~GradSync() = default;
  /// Whether passes since the last reduction have added to gradients on this rank alone.
  virtual bool is_behind() const = 0;
  /// The ranks on which a gradient that was reduced together with this parameter's held Inf or NaN before the last reduction.
  /// Waits for the device; no communication.
  virtual std::vector<int> ranks_with_nonfinite(const at::Tensor& param) const = 0;
};

/// From now on `sync` reduces the gradients of these, in place of whoever did.
void set_grad_sync(const std::vector<at::Tensor>& params, const std::shared_ptr<GradSync>& sync);
/// `sync` does so no more.
void drop_grad_sync(const std::vector<at::Tensor>& params, const GradSync& sync);
/// What reduces the gradient of `param`; null if nothing does.
std::shared_ptr<GradSync> grad_sync_of(const at::Tensor& param);

}  // namespace apex::amp::detail
