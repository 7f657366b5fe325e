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
inline const auto kEveryLevel = ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5");

/// `fc` of the features in FP32, from weights as the level has rounded them.
inline torch::Tensor linear_of(const torch::nn::Linear& fc) {
  const amp::disable_casts casts_off;
  return torch::linear(features(), fc->weight.to(torch::kFloat), fc->bias.to(torch::kFloat));
}

}  // namespace apex::test
