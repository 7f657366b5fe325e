#pragma once

#include <string>
#include <vector>

namespace apex::amp::detail {

/// Whether the module at `path` is one of `modules`, or in one: "encoder.0" is within "encoder", "encoder2" is not.
inline bool is_within(const std::string& path, const std::vector<std::string>& modules) {
  for (const auto& module : modules) {
    if (path.compare(0, module.size(), module) == 0 && (path.size() == module.size() || path[module.size()] == '.'))
      return true;
  }
  return false;
}

}  // namespace apex::amp::detail
