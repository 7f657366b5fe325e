#pragma once

#include <string>
#include <vector>

#include "opt_levels/cast_lists.h"
#include "opt_levels/detail/yaml_map.h"

namespace apex::opt_levels::detail {

/// Makes cast lists out of YAML.
struct CastReader {
  /// The built-in file's form: it has its extensions as a block of their own, which replaces what its casts say, and a list
  /// `widen`, which is part of the extensions and of `match`.
  static CastLists read_built_in(const std::string& text, bool with_extensions);
  /// As `CastLists::from_yaml_string`.
  static CastLists read(const std::string& text, const std::string& source);
  /// The same of a map that stands in another document.
  static CastLists read(const std::vector<YamlEntry>& entries);
};

}  // namespace apex::opt_levels::detail
