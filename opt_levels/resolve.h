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

/// Everything that `initialize` goes by.
struct Settings {
  Properties properties;
  std::optional<c10::ScalarType> cast_model_outputs;
  std::int64_t num_losses = 1;
  std::int64_t verbosity = 1;
  std::optional<double> min_loss_scale;
  double max_loss_scale = kMaxLossScale;
  bool skip_nonfinite = false;
  bool allow_banned = false;
  std::optional<bool> allow_tf32;  // none: the process's own setting
  Cpu16Bit cpu_16bit = Cpu16Bit::automatic;
  CastLists casts = CastLists::built_in();
  std::vector<std::string> float32_modules, float32_functions;
};

/// The settings in force: `options` before the level's YAML, that before the level's preset. In Apex's order: the level
/// (INIT-05), the bounds of the loss scale (INIT-07), then each property (INIT-08), the first bad one ends it.
///
/// With `enabled` false nothing is checked, and all but the verbosity is as constructed (INIT-02, INIT-03).
/// Errors, naming option, value and, if it came from YAML, its place: RuntimeError for an unknown level and for what the
/// level forbids (PROP-10 to PROP-15; the rules of O1 hold for O4, too); ValueError for a type that is not kHalf, kBFloat16
/// or kFloat, num_losses below 1, verbosity below 0, a loss scale or bound that is not positive and finite, a lower bound
/// above the upper one.
Settings resolve(const OptLevel& level, const InitializeOptions& options = {});

}  // namespace apex::opt_levels
