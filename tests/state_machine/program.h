#pragma once
// The initial state of both the literal model and the library.
#include "tests/state_machine/events.h"

namespace apex::test {

constexpr double kLearningRate = 0.25;
constexpr size_t kHistory = 4;  // events of a scale that are kept

inline Values initial_values(int param) { return {static_cast<float>(param + 1), -0.5f * static_cast<float>(param)}; }

inline bool has_masters(const Config& config) { return config.level == "O2" || config.level >= "O5"; }

/// Parameters that may get unscaled gradients outside a block: parameters without a master and without delayed, scaled
/// gradients.
inline bool takes_plain_gradients(const Config& config, int param) {
  return !has_masters(config) || (!is_cast(param) && config.kind != OptimizerKind::fused_sgd_in_fused_order);
}

}  // namespace apex::test
