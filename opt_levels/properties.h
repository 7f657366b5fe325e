#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "opt_levels/loss_scale.h"

namespace apex::opt_levels {

/// What a level comes down to: Apex's seven properties, and the 16-bit type that O1 and O4 cast functions to. As
/// constructed they are what amp has before, or without, `initialize` (INIT-02).
struct Properties {
  bool enabled = false;
  std::string opt_level;                           // empty: none
  std::optional<c10::ScalarType> cast_model_type;  // none: the model stays as it is
  bool patch_torch_functions = false;
  std::optional<c10::ScalarType> patch_functions_type;  // of matter only with patch_torch_functions
  std::optional<bool> keep_batchnorm_fp32;
  std::optional<bool> master_weights;
  LossScale loss_scale;

  friend bool operator==(const Properties& a, const Properties& b);
  friend bool operator!=(const Properties& a, const Properties& b) { return !(a == b); }
};

/// Apex's seven properties in the order in which it prints them, each with its value as one would write it in YAML (PRINT-01).
std::vector<std::pair<std::string, std::string>> describe(const Properties& properties);

}  // namespace apex::opt_levels
