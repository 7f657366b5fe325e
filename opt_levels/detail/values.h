#pragma once

#include "opt_levels/initialize_options.h"
#include "opt_levels/properties.h"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace apex::opt_levels::detail {

/// Joins words: "a, b, c".
std::string join(const std::vector<std::string>& words, const std::string& between = ", ");

/// The known word with the fewest edits from `word`, regardless of case; empty if none is near. The name of a 16-bit type gives
/// "half" if `half` is known, although few edits turn "float16" into another type.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// " Did you mean 'x'?" with the nearest word; empty if none is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

// Conversion between values and their text in YAML and messages.

/// Parses a number as Python's `float(text)` does, except for underscores; `std::nullopt` if the text is not a number.
std::optional<double> parse_number(const std::string& text);

/// A scalar of a document: its text, and whether it was quoted. A quoted scalar is always a string.
struct Scalar {
  std::string text;
  bool quoted = false;

  /// True if the scalar is none, null, ~ or empty, without quotes.
  bool is_none() const;
};

/// Each overload parses a scalar into `value` and returns null. On failure it returns a description of the allowed values and
/// leaves `value` unchanged. An optional also takes none; an optional type also takes false, with the same meaning.
const char* parse_value(const Scalar& scalar, bool& value);
const char* parse_value(const Scalar& scalar, std::int64_t& value);
const char* parse_value(const Scalar& scalar, double& value);
const char* parse_value(const Scalar& scalar, std::string& value);
const char* parse_value(const Scalar& scalar, c10::ScalarType& value);
const char* parse_value(const Scalar& scalar, LossScale& value);
const char* parse_value(const Scalar& scalar, Cpu16Bit& value);
const char* parse_value(const Scalar& scalar, Float8Recipe& value);
const char* parse_value(const Scalar& scalar, Float8Format& value);
const char* parse_value(const Scalar& scalar, std::optional<bool>& value);
const char* parse_value(const Scalar& scalar, std::optional<c10::ScalarType>& value);

/// The reverse: `parse_value` reads the text back as the same value.
std::string value_text(bool value);
std::string value_text(std::int64_t value);
std::string value_text(double value);
std::string value_text(c10::ScalarType value);
std::string value_text(const LossScale& value);
std::string value_text(Cpu16Bit value);
std::string value_text(Float8Recipe value);
std::string value_text(Float8Format value);
std::string value_text(const std::optional<bool>& value);
std::string value_text(const std::optional<c10::ScalarType>& value);

/// The only list of the options, by their names in YAML. Options that change properties come first, in the order in which Apex
/// applies them (INIT-08).
struct OptionFields {
  /// Calls `visit(name, left, right)` for each option, with the `std::optional` of each of the two sets.
  template <class Left, class Right, class Visit>
  static void visit_pairs(Left& a, Right& b, Visit&& visit) {
    visit("enabled", a.enabled_, b.enabled_);
    visit("cast_model_type", a.cast_model_type_, b.cast_model_type_);
    visit("patch_torch_functions", a.patch_torch_functions_, b.patch_torch_functions_);
    visit("keep_batchnorm_fp32", a.keep_batchnorm_fp32_, b.keep_batchnorm_fp32_);
    visit("master_weights", a.master_weights_, b.master_weights_);
    visit("loss_scale", a.loss_scale_, b.loss_scale_);
    visit("cast_model_outputs", a.cast_model_outputs_, b.cast_model_outputs_);
    visit("num_losses", a.num_losses_, b.num_losses_);
    visit("verbosity", a.verbosity_, b.verbosity_);
    visit("min_loss_scale", a.min_loss_scale_, b.min_loss_scale_);
    visit("max_loss_scale", a.max_loss_scale_, b.max_loss_scale_);
    visit("skip_nonfinite", a.skip_nonfinite_, b.skip_nonfinite_);
    visit("allow_banned", a.allow_banned_, b.allow_banned_);
    visit("allow_tf32", a.allow_tf32_, b.allow_tf32_);
    visit("cpu_16bit", a.cpu_16bit_, b.cpu_16bit_);
    visit("fp8", a.fp8_, b.fp8_);
    visit("fp8_gradients", a.fp8_gradients_, b.fp8_gradients_);
    visit("fp8_convolutions", a.fp8_convolutions_, b.fp8_convolutions_);
    visit("huge_pages", a.huge_pages_, b.huge_pages_);
    visit("casts", a.casts_, b.casts_);
    visit("float32_modules", a.float32_modules_, b.float32_modules_);
    visit("float32_functions", a.float32_functions_, b.float32_functions_);
    visit("bfloat16_modules", a.bfloat16_modules_, b.bfloat16_modules_);
  }

  template <class Options, class Visit>
  static void visit(Options& options, Visit&& visit) {
    visit_pairs(options, options, [&](const char* name, auto& option, auto&) { visit(name, option); });
  }
};

}  // namespace apex::opt_levels::detail
