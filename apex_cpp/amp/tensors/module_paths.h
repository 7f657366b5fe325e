#pragma once

#include <string>
#include <vector>

namespace apex::amp::detail {

/// The path of the module that has the parameter of this name: "layer1.0.conv1.weight" is in "layer1.0.conv1". Empty for a
/// parameter of the root.
inline std::string module_path_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

/// Whether the module at `path` is one of `modules`, or in one: "encoder.0" is within "encoder", "encoder2" is not.
inline bool is_within(const std::string& path, const std::vector<std::string>& modules) {
  for (const auto& module : modules) {
    if (path.compare(0, module.size(), module) == 0 && (path.size() == module.size() || path[module.size()] == '.'))
      return true;
  }
  return false;
}

}  // namespace apex::amp::detail
