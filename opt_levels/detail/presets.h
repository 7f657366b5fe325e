#pragma once

#include "opt_levels/properties.h"

#include <string>
#include <vector>

namespace apex::opt_levels::detail {

/// A level as its YAML file in this folder has it.
struct Preset {
  std::string description;
  Properties properties;
  std::string level_above;  ///< the next one with more FP32; empty: there is none
  std::string in_bfloat16;  ///< its kin of BF16; empty: none, or the level itself
};

/// The levels' names, in order.
std::vector<std::string> level_names();

/// Errors: RuntimeError that lists the levels (INIT-05). `place` is where the name was read, or empty.
const Preset& preset(const std::string& name, const std::string& place = "");

/// The file's text. Errors: RuntimeError that names the file, as `what`, and the reason.
std::string read_file(const std::string& path, const std::string& what);

}  // namespace apex::opt_levels::detail
