#pragma once

#include <apex_cpp/amp/tensors/parameters.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

// What watches operator calls has of them: the tensors among arguments or results, and the module that an argument tells.
namespace apex::amp::detail {

/// Visits the defined tensors in a value, those in lists and tuples too, in order.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_tensor(element, visit);
  }
}

/// "aten::conv2d" of a call that LibTorch announces; an overload follows a dot.
inline std::string name_of_call(const at::RecordFunction& function) {
  const std::string overload = function.overload_name();
  return function.name() + (overload.empty() ? "" : "." + overload);
}

/// The path of the module whose parameter, or view of one, `tensor` is. Empty for other tensors.
inline std::string module_of(const at::Tensor& tensor, const ParameterNames& names) {
  const auto* name = names.find(tensor);
  if (!name && tensor.is_view()) name = names.find(at::Tensor(tensor._base()));
  return name ? module_path_of(*name) : "";
}

}  // namespace apex::amp::detail

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
class OverlappingGrads {
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
  OverlappingGrads grads;
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
