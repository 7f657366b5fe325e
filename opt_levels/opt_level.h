#pragma once

#include "opt_levels/initialize_options.h"
#include "opt_levels/properties.h"

#include <map>
#include <string>
#include <vector>

namespace apex::opt_levels {

/// An opt level, with the overrides that its YAML gave: Apex's O0 to O3, or O4 and O5, which are O1 and O2 in bfloat16
/// with a loss scale of 1.
///
/// YAML is one map. `opt_level` names the level (default O1, as in Apex); every other key is an option of `InitializeOptions`
/// by its name, and changes the level. Types are float16 (half), bfloat16, float32 (float); an option that is none, or null,
/// counts as not given. `casts` is a map as `CastLists` reads it, or the path of such a file; `float32_modules` and
/// `float32_functions` are lists. The map may also stand under a top-level key `amp` of a larger document.
class OptLevel {
 public:
  /// The level of that name, unchecked until it is used: with `enabled` false, `initialize` accepts any (INIT-03).
  OptLevel(std::string name);  // NOLINT(google-explicit-constructor)
  OptLevel(const char* name);  // NOLINT(google-explicit-constructor)

  /// The level of that name. Errors: RuntimeError that lists the levels (INIT-05).
  static OptLevel named(const std::string& name);

  /// A path in it starts from the file's folder. Errors: RuntimeError if the file, or one that it names, cannot be read;
  /// otherwise as `from_yaml_string`.
  static OptLevel from_yaml_file(const std::string& path);

  /// `source_name` stands for the file in messages; a path in the text starts from `folder`, empty for the working directory.
  /// Errors, each with source, line, column, key and value: ValueError for text that is no YAML map, a key that is unknown or
  /// stands twice, and a value of a wrong type or out of range; RuntimeError for an unknown level, and for a value that the
  /// level forbids. With `enabled: false` the last three are not looked for. Several mistakes are one error with a line for
  /// each: those of keys and types, or, where there are none, those that the level and the ranges of options forbid.
  static OptLevel from_yaml_string(const std::string& text, const std::string& source_name = "<string>",
                                   const std::string& folder = "");

  /// The level and its overrides as YAML: `from_yaml_string` of it gives an equal level.
  std::string to_yaml() const;

  /// The same level with these options in place of those that it has of the same names.
  OptLevel with(const InitializeOptions& options) const;

  const std::string& name() const { return name_; }
  /// One line on what the level does. Errors: RuntimeError for an unknown level.
  const std::string& description() const;
  /// The level's properties before any override. Errors: RuntimeError for an unknown level.
  const Properties& preset() const;
  /// What the YAML gave beside the level.
  const InitializeOptions& overrides() const { return overrides_; }
  /// Where the YAML gave `key`, as "source:line:column"; empty where it did not.
  std::string place_of(const std::string& key) const;

  /// Equal if name and overrides are; where they were read does not matter.
  friend bool operator==(const OptLevel& a, const OptLevel& b) { return a.name_ == b.name_ && a.overrides_ == b.overrides_; }
  friend bool operator!=(const OptLevel& a, const OptLevel& b) { return !(a == b); }

 private:
  std::string name_;
  InitializeOptions overrides_;
  std::map<std::string, std::string> places_;
};

/// The levels with more FP32, the next one first: O2, O1, O0 after O3; O4, O0 after O5; none after O0. A level that its
/// overrides make one of bfloat16 counts as O5's kin. Overrides that any level can have (`num_losses`, `verbosity`,
/// `allow_banned`, `allow_tf32`, `cpu_16bit`, `skip_nonfinite`, `float32_modules`, `float32_functions`) hold at these levels
/// too; those of types, cast lists and loss scales do not.
std::vector<OptLevel> levels_above(const OptLevel& level);

}  // namespace apex::opt_levels
