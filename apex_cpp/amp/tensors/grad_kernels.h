#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// Gradients on their way to the multi-tensor kernels, and their end.
namespace apex::amp::detail {

/// A gradient that fills its memory without gaps or repeats, copied if need be, as kernels want it.
at::Tensor dense(const at::Tensor& grad);

/// A tensor in the memory order of `like`, whose shape it has, on its own device; copied if need be. Kernels walk the memory of
/// several linearly.
at::Tensor in_layout_of(const at::Tensor& tensor, const at::Tensor& like);

/// What is added to a norm before it divides, as in torch.nn.utils.clip_grad_norm_.
constexpr double kClipEpsilon = 1e-6;

/// The gradients after a backward pass that began with none, sorted by what had been put aside for it.
struct PassGrads {
  std::vector<at::Tensor> fresh;           // nothing was put aside
  std::vector<at::Tensor> older;           // put aside, and the pass made none
  std::vector<at::Tensor> again, stashed;  // the pass's, and what is to be added to them, in one layout

  /// Sorts in the gradient of `param`, made dense, or in its place the `stash` where the pass made none.
  void add(const at::Tensor& param, const at::Tensor& stash);
};

/// Finds gradients that share memory, and parts them. Autograd hands one buffer to both sides of a sum of views, such as
/// `u.view(…) + v.view(…)` or `a.t() + b.t()`, and work in place on both gradients would reach it twice.
class GradsApart {
 public:
  /// Notes the parameters whose gradients, or memory of these, something else holds as well. Reads two counts a parameter.
  void add(at::TensorList params);
  /// Of the gradients that overlap, all but the first are replaced by copies. No synchronisation.
  void part();

 private:
  std::vector<at::Tensor> held_elsewhere_;
};

/// Parts the gradients of these parameters, or of those of an optimizer's groups.
void part_grads(at::TensorList params);
template <class ParamGroups>
void part_grads_of_groups(const ParamGroups& groups) {
  GradsApart grads;
  for (const auto& group : groups) grads.add(group.params());
  grads.part();
}

/// A found_inf for calls whose overflow nobody asks for, on the device of `like`.
at::Tensor unread_flag(const at::Tensor& like);

/// Multiplies them by `factor`, whatever comes out. No synchronisation.
void scale_all(const std::vector<at::Tensor>& grads, double factor);

/// The L2 norm of all of grads[i] * factor, float32, one element; raises `found_inf` if it is not finite. No synchronisation.
at::Tensor scaled_norm(at::TensorList grads, double factor, const at::Tensor& found_inf);

/// Whether there is a gradient with a value in it, NaN included. Waits for its device; a sparse one is taken to have some.
bool has_nonzero(const at::Tensor& grad);

/// Drops the gradient of `param`, or zeroes it in place without its history, if it has one.
void clear_grad(const at::Tensor& param, bool set_to_none);

/// Lets go of the plans that the kernels keep of this thread's last calls.
void forget_kernel_calls();

}  // namespace apex::amp::detail
