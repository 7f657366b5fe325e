#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace apex::opt_levels {

/// How operators on 16-bit CPU tensors compute. Results are stored in 16 bits either way.
enum class Cpu16Bit : unsigned char {
  automatic,  ///< "auto": `native` where the processor has instructions for the type, oneDNN may use them, and a probe
              ///< finds them fast enough, else `float32`; the environment variable APEX_CPP_CPU_16BIT replaces this
              ///< decision
  native,     ///< LibTorch's own kernels for the type compute
  float32     ///< inputs are cast to FP32, FP32 kernels compute, and the result is rounded once
};

/// Which FP8 recipe matrix products use: which elements of an operand share the scale with which they are rounded to FP8.
enum class Float8Recipe : unsigned char {
  none,      ///< no FP8: products compute in the type of the model
  current,   ///< all elements of a tensor, with a scale from their own values (TransformerEngine's current scaling)
  delayed,   ///< all elements of a tensor, with a scale from the largest values of earlier passes (TransformerEngine's delayed
             ///< scaling)
  block128,  ///< 1x128 elements along the contracted dimension of activations and gradients, 128x128 of weights
             ///< (TransformerEngine's Float8BlockScaling)
  mx         ///< 32 elements along the contracted dimension, with a power of two as scale (MXFP8 of the OCP MX formats)
};

/// An FP8 format.
enum class Float8Format : unsigned char {
  e4m3,  ///< 4 bits of exponent, 3 of mantissa: up to 448, no Inf
  e5m2   ///< 5 bits of exponent, 2 of mantissa: up to 57344
};

/// 2^24: the default upper bound of a dynamic loss scale.
inline constexpr double kMaxLossScale = 16777216.0;

/// A loss scale: a fixed number, or `"dynamic"`, which adapts to overflows in training.
///
/// Converts from any number, and from a string as in Apex (PROP-16): "dynamic", or a number such as "128.0". Errors: ValueError
/// for another string. `resolve` checks whether the number is usable.
struct LossScale {
  bool dynamic = false;
  double value = 1.0;  // of a fixed scale; a dynamic scale has an initial value of its own

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

/// The properties of a level: Apex's seven, and the 16-bit type to which O1 and O4 cast functions. The defaults are amp's
/// properties before, or without, `initialize` (INIT-02).
struct Properties {
  bool enabled = false;
  std::string opt_level;                           // empty: none
  std::optional<c10::ScalarType> cast_model_type;  // none: the model stays as it is
  bool patch_torch_functions = false;
  std::optional<c10::ScalarType> patch_functions_type;  // used only with patch_torch_functions
  std::optional<bool> keep_batchnorm_fp32;
  std::optional<bool> master_weights;
  LossScale loss_scale;

  friend bool operator==(const Properties& a, const Properties& b);
  friend bool operator!=(const Properties& a, const Properties& b) { return !(a == b); }
};

/// Apex's seven properties in the order in which Apex prints them, each with its value as in YAML (PRINT-01).
std::vector<std::pair<std::string, std::string>> describe(const Properties& properties);

}  // namespace apex::opt_levels
