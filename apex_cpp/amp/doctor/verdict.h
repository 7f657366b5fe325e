#pragma once

#include <apex_cpp/amp/doctor/divergence.h>
#include <apex_cpp/amp/doctor/observed_step.h>

namespace apex::amp::detail {

/// Ratios of signal to noise in dB below which a tensor does not agree with the reference's.
struct Thresholds {
  double forward, backward;
};

/// A divergence, and which call of the level's step it is.
struct Verdict {
  Divergence divergence;
  size_t call = 0;
};

/// The first call of `level` to blame, or the weight that was Inf or NaN before all of them, or no divergence. `control` is the
/// reference from weights that are some rounding errors off: what does not agree there either depends on the last bits at any
/// precision, and nobody is blamed for it.
Verdict first_divergence(const ObservedStep& reference, const ObservedStep& control, const ObservedStep& level,
                         const Thresholds& thresholds);

}  // namespace apex::amp::detail
