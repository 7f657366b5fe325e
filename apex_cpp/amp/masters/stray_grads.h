#pragma once

#include <apex_cpp/amp/tensors/tensor_trace.h>

#include <functional>
#include <unordered_set>
#include <vector>

namespace apex::amp::detail {

/// Gradients that the parameters of one optimizer get in a scale_loss block that was not given this optimizer. They carry the
/// block's loss scale and nobody unscales them, so that a step or a further block must find them gone. Host data, no
/// synchronisation.
class StrayGrads {
 public:
  using Params = std::vector<at::Tensor>;

  /// A block begins that was not given the optimizer of these parameters.
  void begin_block(const Params& params);
  /// It has ended. `is_taken` answers whether it unscales the gradient of a parameter, for another optimizer.
  void end_block(const std::function<bool(const at::Tensor&)>& is_taken);
  /// The optimizer begins a block of its own inside the other one.
  void end_watch() { before_.clear(); }
  /// A parameter whose stray gradient is as the block left it, of those that `counts`; undefined if there is none.
  at::Tensor first(const std::function<bool(const at::Tensor&)>& counts = {}) const;
  /// All parameters whose stray gradients are as the block left them.
  std::unordered_set<const at::TensorImpl*> params() const;
  /// Those of parameters that the optimizer has no more.
  void forget(const Params& gone);
  /// The gradients were zeroed or dropped.
  void forget() { strays_.clear(); }

 private:
  struct Gradient {
    at::Tensor param;
    TensorTrace trace;
    bool still() const { return trace.still(param.grad()); }
  };
  std::vector<Gradient> before_, strays_;
};

}  // namespace apex::amp::detail
