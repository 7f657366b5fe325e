#pragma once

#include <cstdint>
#include <string>

namespace common {

/// "1 epoch", "2 epochs".
inline std::string counted(int64_t number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

}  // namespace common
