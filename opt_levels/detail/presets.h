#pragma once

#include "opt_levels/properties.h"

#include <string>
#include <vector>

namespace apex::opt_levels::detail {

/// A level, as read from its YAML file in opt_levels/.
struct Preset {
  std::string description;
  Properties properties;
  Float8Recipe fp8 = Float8Recipe::none;
  std::string level_above;  ///< the next level with more FP32; empty if there is none
  std::string in_bfloat16;  ///< the same level in BF16; empty if there is none, and for BF16 levels
  std::string in_fp8;       ///< the same level with products in FP8; empty if there is none, and for FP8 levels
};

/// The levels' names, in order.
std::vector<std::string> level_names();

/// The preset of a level. `place` is the place of the name in the YAML, or empty. Errors: RuntimeError that lists the levels
/// (INIT-05).
const Preset& preset(const std::string& name, const std::string& place = "");

/// The file's text. Errors: RuntimeError with the kind of file (`what`), its path and the reason.
std::string read_file(const std::string& path, const std::string& what);

}  // namespace apex::opt_levels::detail
