#pragma once

#include <cstdint>

namespace apex::lr_scheduler::detail {

constexpr double kPi = 3.14159265358979323846;  // Python's math.pi

/// A Python integer in an expression with floats.
inline double real(int64_t value) { return static_cast<double>(value); }

}  // namespace apex::lr_scheduler::detail
