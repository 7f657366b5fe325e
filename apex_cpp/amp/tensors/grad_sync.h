#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

// Gradients that are reduced over processes while a backward pass runs, as DistributedDataParallel has it: what amp asks of
// whoever reduces them. Without any, asking costs one read of a counter. From any thread.
namespace apex::amp::detail {

class GradSync {
 public:
  GradSync() = default;
  GradSync(const GradSync&) = delete;
  GradSync& operator=(const GradSync&) = delete;
  virtual ~GradSync() { set_behind(false); }

  /// Whether passes since the last reduction have added to gradients on this rank alone.
  bool is_behind() const { return behind_; }
  /// Whether any is.
  static bool any_is_behind();
  /// The ranks on which a gradient that was reduced together with this parameter's held Inf or NaN before the last reduction.
  /// Waits for the device; no communication.
  virtual std::vector<int> ranks_with_nonfinite(const at::Tensor& param) const = 0;

 protected:
  void set_behind(bool behind);

 private:
  std::atomic<bool> behind_{false};
};

/// From now on `sync` reduces the gradients of these, in place of whoever did.
void set_grad_sync(const std::vector<at::Tensor>& params, const std::shared_ptr<GradSync>& sync);
/// `sync` does so no more.
void drop_grad_sync(const std::vector<at::Tensor>& params, const GradSync& sync);
/// What reduces the gradient of `param`; null if nothing does.
std::shared_ptr<GradSync> grad_sync_of(const at::Tensor& param);

/// Whether passes since the last reduction have added to the parameter's gradient on this rank alone, which the next one is to
/// reduce.
bool is_behind(const at::Tensor& param);
/// The same, and the parameter has one.
bool has_unreduced_grad(const at::Tensor& param);

}  // namespace apex::amp::detail
