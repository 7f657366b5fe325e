#pragma once

#include <apex_cpp/amp/tensors/parameters.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

// Gradients: prepared for the multi-tensor kernels, cleared, and reduced over processes.
namespace apex::amp::detail {

/// Whether a gradient has the shape of its parameter and lies on the same device.
bool fits(const at::Tensor& grad, const at::Tensor& param);

/// Whether a tensor can be written in place: no element of a strided one repeats in memory, and one that was made in inference
/// mode is written in it.
bool is_writable(const at::Tensor& tensor);

/// `grad` itself if it is non-overlapping, dense and no negated view, as the kernels require; else a copy that is.
at::Tensor dense(const at::Tensor& grad);

/// `tensor` itself if it has the strides of `like` and is no negated view; else a copy with these strides, on the device of
/// `tensor`. Both have the same shape. Kernels walk the memory of all their tensors linearly.
at::Tensor in_layout_of(const at::Tensor& tensor, const at::Tensor& like);

/// Added to the norm before the division, as in torch.nn.utils.clip_grad_norm_.
constexpr double kClipEpsilon = 1e-6;

/// The gradients after a backward pass that started without gradients, sorted by whether earlier gradients were stashed.
struct PassGrads {
  std::vector<at::Tensor> fresh;           ///< from this pass only
  std::vector<at::Tensor> older;           ///< stashed; this pass made none
  std::vector<at::Tensor> again, stashed;  ///< pairs of this pass's gradient and the stashed one to add, with equal strides

  /// Adds the gradient of `param`, made dense. Where the pass made none, `param` gets `stash` back as its gradient.
  void add(const at::Tensor& param, const at::Tensor& stash);
};

/// Finds gradients that share memory and separates them. Autograd gives both sides of a sum of views, such as
/// `u.view(…) + v.view(…)` or `a.t() + b.t()`, the same buffer; in-place work on both gradients would change it twice.
class OverlappingGrads {
 public:
  /// Records the parameters whose gradient or storage has more than one owner. Reads two reference counts a parameter.
  void add(at::TensorList params);
  /// Replaces all but the first of overlapping gradients by copies. No synchronisation.
  void separate();

 private:
  std::vector<at::Tensor> shared_;  // parameters
};

/// Separates overlapping gradients of these parameters, or of all parameters of an optimizer's groups.
void separate_grads(at::TensorList params);
template <class ParamGroups>
void separate_grads_of_groups(const ParamGroups& groups) {
  OverlappingGrads grads;
  for (const auto& group : groups) grads.add(group.params());
  grads.separate();
}

/// A found_inf flag on the device of `like`, for kernel calls whose overflow flag is not read.
at::Tensor unread_flag(const at::Tensor& like);

/// Multiplies all gradients by `factor` in place, without an overflow check. No synchronisation.
void scale_all(const std::vector<at::Tensor>& grads, double factor);

/// The L2 norm over all grads[i] * factor: float32, one element. Sets `found_inf` if it is not finite. No synchronisation.
at::Tensor scaled_norm(at::TensorList grads, double factor, const at::Tensor& found_inf);

/// Whether `grad` is defined and has a nonzero value; NaN counts. Synchronises. True for any sparse gradient.
bool has_nonzero(const at::Tensor& grad);
/// The same of any of the gradients. Synchronises once for all of those on GPUs.
bool any_nonzero(const std::vector<at::Tensor>& grads);

/// Drops the gradient of `param`, or detaches and zeroes it in place. No-op without a gradient.
void clear_grad(const at::Tensor& param, bool set_to_none);

/// Drops the launch plans that the kernels cache for this thread's last calls.
void forget_kernel_calls();

// What amp needs to know about gradients that DistributedDataParallel reduces over processes during backward. Without such
// gradients each query reads one counter. Callable from any thread.

/// Reduces the gradients of some parameters over processes.
class GradSync {
 public:
  GradSync() = default;
  GradSync(const GradSync&) = delete;
  GradSync& operator=(const GradSync&) = delete;
  virtual ~GradSync() { set_unreduced(false); }

  /// Whether passes since the last reduction have added gradients that only this rank has, as within no_sync().
  bool is_unreduced() const { return unreduced_; }
  /// Whether `is_unreduced` holds for any GradSync of the process.
  static bool any_is_unreduced();
  /// The ranks that had Inf or NaN, before the last reduction, in the gradient of `param` or in a gradient reduced together
  /// with it. Synchronises; no communication.
  virtual std::vector<int> ranks_with_nonfinite(const at::Tensor& param) const = 0;
  /// The maximum over all processes, in place. Collective.
  virtual void take_maximum(const at::Tensor& values) const = 0;

 protected:
  void set_unreduced(bool unreduced);

 private:
  std::atomic<bool> unreduced_{false};
};

/// Registers `sync` as what reduces the gradients of `params`; replaces an earlier registration.
void set_grad_sync(const std::vector<at::Tensor>& params, const std::shared_ptr<GradSync>& sync);
/// Removes the registrations of `sync` for `params`.
void drop_grad_sync(const std::vector<at::Tensor>& params, const GradSync& sync);
/// The GradSync that reduces the gradient of `param`; null if there is none.
std::shared_ptr<GradSync> grad_sync_of(const at::Tensor& param);

/// Whether the GradSync of `param` has unreduced passes.
bool is_unreduced(const at::Tensor& param);
/// Whether `param` has a gradient and `is_unreduced(param)`.
bool has_unreduced_grad(const at::Tensor& param);

}  // namespace apex::amp::detail
