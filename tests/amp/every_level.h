#pragma once

#include "tests/amp/support.h"

namespace apex::test {

/// A test at each level.
class AtEveryLevel : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  const char* level() const { return GetParam(); }
  /// At O1 and O4 outputs keep the operators' dtype.
  bool casts_operators() const { return level()[1] == '1' || level()[1] == '4'; }
};
inline const auto kEveryLevel = ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6");

/// `fc` of the features in FP32, from weights as the level has rounded them.
inline torch::Tensor linear_of(const torch::nn::Linear& fc) {
  const amp::disable_casts casts_off;
  return torch::linear(features(), fc->weight.to(torch::kFloat), fc->bias.to(torch::kFloat));
}

/// The bound, relative and absolute, for up to 3 times a level's output of `fc` beside that of `linear_of`. A rounding to BF16
/// is off by 2^-8 of the value at most. The sum and its multiple are rounded: 2 * 2^-8 of the result. So are both factors of
/// six products, whose magnitudes add up to about 0.8: 3 * 0.8 * 2 * 2^-8 = 0.02.
constexpr double kLinearBound = 0.02;

}  // namespace apex::test
