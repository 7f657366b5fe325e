#pragma once

#include "kernels/rules/rule.h"

namespace apex::kernels::rules {

// out = a * x + b * y, without a fused multiply-add: swapping (a, x) with (b, y) gives the same bits. The sums tell whether an
// x, or a y, is not finite.
template <class Math>
struct Axpby {
  using Real = Math;
  using Fold = Sum;
  static constexpr Use kUses[] = {Use::read, Use::read, Use::write};
  static constexpr size_t kSums = 2;

  Math a;
  Math b;

  template <class V>
  HD void operator()(V x, V y, V& out, V& x_residue, V& y_residue) const {
    note_nonfinite(x_residue, x);
    note_nonfinite(y_residue, y);
    out = add(multiply(V(a), x), multiply(V(b), y));
  }
};

}  // namespace apex::kernels::rules
