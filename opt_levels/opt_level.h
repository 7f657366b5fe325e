#pragma once

#include "opt_levels/initialize_options.h"
#include "opt_levels/properties.h"

#include <map>
#include <string>
#include <vector>

namespace apex::opt_levels {

/// An opt level with the overrides of its YAML: Apex's O0 to O3; O4 and O5, which are O1 and O2 in bfloat16 with a loss scale
/// of 1; or O6, which is O5 with matrix products in FP8.
///
/// The YAML is one map. `opt_level` names the level (default O1, as in Apex). Every other key is an option of
/// `InitializeOptions` by its name, and overrides the level. Types are float16 (half), bfloat16 and float32 (float). An option
/// with the value none or null counts as not set; only for `fp8`, none is a value. `casts` is a map as `CastLists` reads it, or
/// the path of a file with such a map. `float32_modules`, `float32_functions` and `bfloat16_modules` are lists. The map may
/// also be the value of a top-level key `amp` in a larger document.
class OptLevel {
 public:
  /// The level of that name. The name is checked on use: with `enabled` false, `initialize` accepts any name (INIT-03).
  OptLevel(std::string name);  // NOLINT(google-explicit-constructor)
  OptLevel(const char* name);  // NOLINT(google-explicit-constructor)

  /// The level of that name, checked. Errors: RuntimeError that lists the levels (INIT-05).
  static OptLevel named(const std::string& name);

  /// Relative paths in the file start from the file's folder. Errors: RuntimeError if the file, or a file that it names, cannot
  /// be read; otherwise as `from_yaml_string`.
  static OptLevel from_yaml_file(const std::string& path);

  /// `source_name` names the text in messages. Relative paths in the text start from `folder`; empty is the working directory.
  /// Errors, each with source, line, column, key and value: ValueError for text that is no YAML map, a key that is unknown or
  /// occurs twice, and a value of a wrong type or out of range; RuntimeError for an unknown level, and for a value that the
  /// level forbids. With `enabled: false`, ranges, the level's name and forbidden values are not checked. Several mistakes make
  /// one error with a line for each mistake. Mistakes in keys and types come first; without them, the error lists the values
  /// that the level or the options' ranges forbid.
  static OptLevel from_yaml_string(const std::string& text, const std::string& source_name = "<string>",
                                   const std::string& folder = "");

  /// The level and its overrides as YAML. `from_yaml_string` reads it back as an equal level.
  std::string to_yaml() const;

  /// The same level with these options. They replace the overrides of the same names.
  OptLevel with(const InitializeOptions& options) const;

  const std::string& name() const { return name_; }
  /// A description of the level in one line. Errors: RuntimeError for an unknown level.
  const std::string& description() const;
  /// The level's properties without overrides. Errors: RuntimeError for an unknown level.
  const Properties& preset() const;
  /// The options that override the level.
  const InitializeOptions& overrides() const { return overrides_; }
  /// The place of `key` in the YAML, as "source:line:column"; empty if the YAML does not set it.
  std::string place_of(const std::string& key) const;

  /// Equal if names and overrides are equal, wherever they were read.
  friend bool operator==(const OptLevel& a, const OptLevel& b) { return a.name_ == b.name_ && a.overrides_ == b.overrides_; }
  friend bool operator!=(const OptLevel& a, const OptLevel& b) { return !(a == b); }

 private:
  std::string name_;
  InitializeOptions overrides_;
  std::map<std::string, std::string> places_;
};

/// The levels with more FP32, the next one first: O2, O1, O0 after O3; O5, O4, O0 after O6; none after O0. A level whose
/// overrides choose bfloat16 counts as its bfloat16 form; O5 with an `fp8` other than none counts as O6, and O6 with `fp8:
/// none` as O5. Overrides that any level can have (`num_losses`, `verbosity`, `allow_banned`, `allow_tf32`, `cpu_16bit`,
/// `huge_pages`, `skip_nonfinite`, `float32_modules`, `float32_functions`) hold at these levels too; those of types, cast
/// lists, loss scales and FP8 (`fp8`, `fp8_gradients`, `fp8_convolutions`, `bfloat16_modules`) do not.
std::vector<OptLevel> levels_above(const OptLevel& level);

}  // namespace apex::opt_levels
