#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// out = in * factor. The sum tells whether an input is not finite.
template <class Math>
struct Scale {
  using Real = Math;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read, Use::write};
  static constexpr size_t kSums = 1;

  Math factor;

  template <class V>
  HD void operator()(V in, V& out, V& residue) const {
    note_nonfinite(residue, in);
    out = multiply(in, V(factor));
  }
};

// Nothing but the sum of Scale.
template <class Math>
struct CheckFinite {
  using Real = Math;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read};
  static constexpr size_t kSums = 1;

  template <class V>
  HD void operator()(V in, V& residue) const {
    note_nonfinite(residue, in);
  }
};

// out = in
template <class Math>
struct Copy {
  using Real = Math;
  static constexpr Use kUses[] = {Use::read, Use::write};
  static constexpr size_t kSums = 0;

  template <class V>
  HD void operator()(V in, V& out) const {
    out = in;
  }
};

}  // namespace apex::kernels::rules
