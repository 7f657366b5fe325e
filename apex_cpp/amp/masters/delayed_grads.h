#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace apex::amp::detail {

/// Gradients of passes with `delay_unscale` (SL-07..09): they stay scaled in the parameters until a later pass unscales all.
class DelayedGrads {
 public:
  /// Whether such gradients wait.
  bool waiting() const { return waiting_; }
  /// Puts the gradients of `params` aside, so that a pass starts from nothing.
  void enter(const std::vector<at::Tensor>& params);
  /// Adds what was put aside to the pass's gradients, in the scale of the pass if that is another one by now.
  void exit(double scale);
  /// Gives back what was put aside in place of the pass's gradients.
  void abandon();
  /// From now on, the parameters' gradients wait at this scale.
  void wait(double scale);
  /// Gradients were unscaled or zeroed.
  void reset();

 private:
  bool waiting_ = false;
  double scale_ = 1.0;
  std::vector<std::pair<at::Tensor, at::Tensor>> aside_;  // parameter, gradient or none
};

}  // namespace apex::amp::detail
