#pragma once

#include <string>

#include "tests/oracle/verdict/compare.h"

namespace oracle {

// The bounds that the reference values come with. Everything not listed here is compared exactly.
class Tolerances {
 public:
  // `opt_level` is empty where amp is not used.
  Tolerances(const std::string& kind, const std::string& opt_level);

  // Model outputs and losses.
  Tolerance output() const;
  // A loss times the loss scale.
  Tolerance scaled_loss(double scale) const;
  // Model parameters, masters and buffers. `sign_steps`: twice the sum of the learning rates that a sign-like optimizer used.
  Tolerance parameter(at::ScalarType dtype, double sign_steps) const;
  // Parameters and buffers that a sign-like optimizer made from another starting point of its state.
  Tolerance resumed_parameter(at::ScalarType dtype, double sign_steps) const;
  Tolerance gradient() const;
  // `largest`: the largest magnitude of this state in the whole optimizer. A single tensor can be all rounding noise: the bias
  // of a convolution under a batch norm has no gradient but that.
  Tolerance state(at::ScalarType dtype, double largest) const;
  Tolerance norm() const;

 private:
  bool fused_alone_;
  bool full_precision_;
  bool all_half_;
};

}  // namespace oracle
