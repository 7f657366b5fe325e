#pragma once

#include <string>
#include <vector>

#include "opt_levels/cast_lists.h"
#include "opt_levels/detail/yaml_map.h"

namespace apex::opt_levels::detail {

/// Reads cast lists from YAML.
struct CastReader {
  /// Reads the built-in file. Its block of extensions overrides its `casts`. Its list `widen` belongs to the extensions and to
  /// `match`.
  static CastLists read_built_in(const std::string& text, bool with_extensions);
  /// As `CastLists::from_yaml_string`.
  static CastLists read(const std::string& text, const std::string& source);
  /// The same for a map inside another document.
  static CastLists read(const std::vector<YamlEntry>& entries);
};

}  // namespace apex::opt_levels::detail
