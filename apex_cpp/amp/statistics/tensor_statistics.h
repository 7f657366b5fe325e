#pragma once
// IWYU pragma: private, include <apex_cpp/amp/statistics.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>

namespace apex::amp {

/// What a 16-bit type does to small values: how many of the finite values that are not 0 become 0, how many become subnormal
/// and lose digits; and their shares of all finite values that are not 0 (0 where there are none).
struct Underflow {
  int64_t zero = 0;
  int64_t subnormal = 0;
  double zero_share = 0;
  double subnormal_share = 0;
};

/// What one tensor holds. Counts are exact. `abs_max`, `mean` and `norm` (L2) are of the finite values, 0 where there are none;
/// they are summed in float64.
struct TensorStatistics {
  std::string name;
  int64_t numel = 0;
  double abs_max = 0;
  double mean = 0;
  double norm = 0;
  int64_t zeros = 0;
  int64_t inf = 0;
  int64_t nan = 0;
  /// How many finite values x != 0 have 2^exponent <= |x| < 2^(exponent + 1), for each exponent that occurs. Values that are
  /// subnormal in the tensor's own dtype count by their true exponents.
  std::map<int, int64_t> exponents;

  /// What happens to the values where they are multiplied by `scale` and rounded, once, to the nearest float16 or bfloat16
  /// (ties to even, subnormal results kept). Exact for a scale that is a power of two, as those of dynamic loss scaling are;
  /// another one counts as the next smaller power of two, with which no less underflows. Errors: ValueError for a scale that is
  /// not finite and above 0, or another dtype.
  Underflow underflow(double scale, c10::ScalarType dtype) const;

  /// Of each exponent's values: those at the power of two itself; those from where on bfloat16, or float16, rounds to the next
  /// power of two, each without the next (`underflow` needs them).
  struct Edges {
    int64_t at_power = 0;
    int64_t near_next_bfloat16 = 0;
    int64_t near_next_float16 = 0;
  };
  std::map<int, Edges> edges;
};

}  // namespace apex::amp
