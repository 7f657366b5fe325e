#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

#include "opt_levels/cpu_16bit.h"
#include "opt_levels/loss_scale.h"

// Values as they are written in YAML and in messages.
namespace apex::opt_levels::detail {

/// As Python's `float(text)` reads it, but for underscores; nothing if it is not a number.
std::optional<double> parse_number(const std::string& text);

/// A scalar out of a document: its text, and whether it stood in quotes, which make it a string whatever it looks like.
struct Scalar {
  std::string text;
  bool quoted = false;

  /// Not quoted, and none, null, ~ or nothing at all.
  bool is_none() const;
};

/// Each reads a scalar into `value`, or answers what would be allowed and leaves `value` alone; null on success.
/// An optional takes none as well; an optional type also false, which means the same.
const char* parse_value(const Scalar& scalar, bool& value);
const char* parse_value(const Scalar& scalar, std::int64_t& value);
const char* parse_value(const Scalar& scalar, double& value);
const char* parse_value(const Scalar& scalar, std::string& value);
const char* parse_value(const Scalar& scalar, c10::ScalarType& value);
const char* parse_value(const Scalar& scalar, LossScale& value);
const char* parse_value(const Scalar& scalar, Cpu16Bit& value);
const char* parse_value(const Scalar& scalar, std::optional<bool>& value);
const char* parse_value(const Scalar& scalar, std::optional<c10::ScalarType>& value);

/// The reverse: `parse_value` of it gives the value again.
std::string value_text(bool value);
std::string value_text(std::int64_t value);
std::string value_text(double value);
std::string value_text(c10::ScalarType value);
std::string value_text(const LossScale& value);
std::string value_text(Cpu16Bit value);
std::string value_text(const std::optional<bool>& value);
std::string value_text(const std::optional<c10::ScalarType>& value);

}  // namespace apex::opt_levels::detail
