#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include <apex_cpp/amp/optimizer_classes/makes_amp_handle.h>

namespace apex::amp {

/// What amp tells an optimizer that updates masters itself: where gradients are, and which parameters get the new values too.
struct MasterStep {
  /// By group and position: the model's 16-bit parameter behind a float32 master, undefined where the optimizer holds the
  /// model's own parameter. Empty where the level has no masters.
  std::vector<std::vector<at::Tensor>> model_params;
  /// The gradients of masters are in `model_params`, in 16 bits; otherwise they are in the masters.
  bool grads_in_model = false;
  /// Gradients are multiplied by it when they are read.
  double grad_scale = 1.0;
};

/// Base, beside `torch::optim::Optimizer`, of an optimizer whose `step` reads gradients and writes model parameters as
/// `master_step` says, in one pass over memory. The handle that `amp::initialize` returns keeps `master_step` up to date; an
/// optimizer without amp has an empty one. Apex: what its amp knows of FusedSGD.
class StepsMasters : public MakesAmpHandle {
 public:
  /// Whether amp is to write unscaled float32 gradients into the masters at the end of a `scale_loss` block (Apex's order:
  /// they can be edited and clipped there), or leave them scaled in the model's parameters for `step` to read.
  virtual bool materialize_master_grads() const = 0;

  MasterStep master_step;
};

/// Base of an optimizer's state for one parameter whose tensors follow the parameter's dtype.
class CastableParamState {
 public:
  virtual ~CastableParamState() = default;
  /// Casts the tensors that have the parameter's dtype to `dtype`.
  virtual void cast_to(at::ScalarType dtype) = 0;
};

}  // namespace apex::amp
