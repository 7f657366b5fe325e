#pragma once

#include <string>
#include <type_traits>

namespace apex::opt_levels {

/// 2^24: where a dynamic loss scale stops growing unless max_loss_scale says otherwise.
inline constexpr double kMaxLossScale = 16777216.0;

/// A loss scale: a fixed number, or adapted to overflows while training (`"dynamic"`).
///
/// Converts from any number, and from a string as Apex does (PROP-16): "dynamic", or a number such as "128.0".
/// Errors: ValueError for another string. Whether a number is usable is checked by `resolve`.
struct LossScale {
  bool dynamic = false;
  double value = 1.0;  // of a fixed scale; a dynamic one has its own start

  LossScale() = default;
  template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>>>
  LossScale(Number number) : value(static_cast<double>(number)) {}  // NOLINT(google-explicit-constructor)
  LossScale(const std::string& text);                               // NOLINT(google-explicit-constructor)
  LossScale(const char* text) : LossScale(std::string(text)) {}     // NOLINT(google-explicit-constructor)

  friend bool operator==(const LossScale& a, const LossScale& b) {
    return a.dynamic == b.dynamic && (a.dynamic || a.value == b.value);
  }
  friend bool operator!=(const LossScale& a, const LossScale& b) { return !(a == b); }
};

}  // namespace apex::opt_levels
