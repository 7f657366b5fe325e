#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "opt_levels/cast_lists.h"
#include "opt_levels/initialize_options.h"
#include "opt_levels/opt_level.h"
#include "opt_levels/properties.h"

namespace apex::opt_levels {

/// The settings that `initialize` uses.
struct Settings {
  Properties properties;
  std::optional<c10::ScalarType> cast_model_outputs;
  std::int64_t num_losses = 1;
  std::int64_t verbosity = 1;
  std::optional<double> min_loss_scale;
  double max_loss_scale = kMaxLossScale;
  bool skip_nonfinite = false;
  bool allow_banned = false;
  std::optional<bool> allow_tf32;  // none: the process's setting stays
  Cpu16Bit cpu_16bit = Cpu16Bit::automatic;
  Float8Recipe fp8 = Float8Recipe::none;
  Float8Format fp8_gradients = Float8Format::e5m2;  // unused without fp8
  bool fp8_convolutions = false;                    // unused without fp8
  std::optional<bool> huge_pages;                   // none: the environment decides
  CastLists casts = CastLists::built_in();
  std::vector<std::string> float32_modules, float32_functions;
  std::optional<std::vector<std::string>> bfloat16_modules;  // none: the first and the last layer of each model
};

/// Returns the effective settings. `options` take precedence over the level's YAML, and the YAML over the level's preset. The
/// checks run in Apex's order, and the first failure throws: the level (INIT-05), the bounds of the loss scale (INIT-07), then
/// each property (INIT-08).
///
/// With `enabled` false nothing is checked, and all settings except the verbosity keep their defaults (INIT-02, INIT-03).
/// Errors name the option, its value and, if it came from YAML, its place: RuntimeError for an unknown level and for a value
/// that the level forbids (PROP-10 to PROP-15; the rules of O1 apply to O4 too), and for FP8 in a model that is not cast to
/// kBFloat16; ValueError for a type that is not kHalf, kBFloat16 or kFloat, num_losses below 1, verbosity below 0, a loss scale
/// or bound that is not positive and finite, and a lower bound above the upper bound.
Settings resolve(const OptLevel& level, const InitializeOptions& options = {});

/// Whether losses can be scaled by it: positive and finite in float32, in which they are, from 1.2e-38 to 3.4e38.
bool is_usable_scale(double scale);

}  // namespace apex::opt_levels
