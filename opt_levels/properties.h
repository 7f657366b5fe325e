#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace apex::opt_levels {

/// How operators on 16-bit CPU tensors compute. What is stored is 16-bit either way.
enum class Cpu16Bit : unsigned char {
  automatic,  ///< "auto": `native` where the processor and oneDNN compute the type in hardware, else `float32`
  native,     ///< by LibTorch's own kernels for the type
  float32     ///< inputs become FP32, FP32 kernels compute, and the result is rounded once
};

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
