#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "opt_levels/detail/values.h"

// Only this header and its source use the YAML library. All other code sees keys, scalars and their places.
namespace apex::opt_levels::detail {

/// One `key: value` of a map, or one item of a list, which has no key. Places have the form "source:line:column", counted from
/// 1.
struct YamlEntry {
  enum class Kind { scalar, list, map };

  std::string key;
  std::string key_place;
  Kind kind = Kind::scalar;
  Scalar value;  // if the kind is scalar
  std::string value_place;
  std::vector<YamlEntry> children;  // if the kind is list or map

  /// True for a scalar that is none, null or empty.
  bool is_none() const { return kind == Kind::scalar && value.is_none(); }
};

/// The keys and values that a document may have.
struct YamlForm {
  std::vector<std::string> keys;
  std::vector<std::string> nested;  ///< the keys whose value may be a list or a map
  std::string example;              ///< a valid line, for messages
  bool allows_amp_key = false;
};

/// Collects the mistakes of a document, to report them together.
class Mistakes {
 public:
  /// Runs the action, and keeps the message of a ValueError.
  template <class Action>
  void collect(Action&& action) {
    try {
      action();
    } catch (const c10::ValueError& error) {
      texts_.emplace_back(error.what_without_backtrace());
    }
  }
  /// Errors: ValueError with all kept messages, one on each line.
  void check() const;

 private:
  std::vector<std::string> texts_;
};

/// Reads the map of a document or, if the form allows it, the map under its top-level key `amp`; other top-level keys are then
/// ignored. Errors: ValueError, with the place, for text that is no such YAML, a key that is not in the form or occurs twice,
/// and a list or a map in place of a single value. `mistakes` collects the errors of single entries, which are left out of the
/// result. Without `mistakes` these errors are thrown.
std::vector<YamlEntry> read_yaml_map(const std::string& text, const std::string& source, const YamlForm& form,
                                     Mistakes& mistakes);
std::vector<YamlEntry> read_yaml_map(const std::string& text, const std::string& source, const YamlForm& form);

/// The line, from 1, where a second document of the text begins, which YAML::Load does not read; 0 if there is none. Errors:
/// YAML::Exception for text that is not YAML.
int64_t line_of_second_document(const std::string& text);

/// The column, from 1, of a tab in the line's indentation, where YAML allows only spaces; 0 if there is none.
std::size_t column_of_tab(const std::string& text, int line);

/// Errors: ValueError, with the place, if the entry's key is unknown.
void check_key(const YamlEntry& entry, const std::vector<std::string>& known_keys);

/// Writes one `key: value` on each line.
std::string write_yaml_map(const std::vector<std::pair<std::string, std::string>>& entries);

/// Writes `key:` and below it the items as a list.
std::string write_yaml_list(const std::string& key, const std::vector<std::string>& items);

/// Indents every line of the text by two columns.
std::string indented(const std::string& text);

/// Reads the entry's value. Errors: ValueError with place, key, what was found and what is allowed.
template <class T>
void read_entry(const YamlEntry& entry, T& value);

/// Errors: ValueError, with the place, if the entry's value is of another kind.
void check_kind(const YamlEntry& entry, YamlEntry::Kind kind, const std::string& allowed);

/// Throws the ValueError of `read_entry` for the entry's value.
[[noreturn]] void reject_entry(const YamlEntry& entry, const std::string& allowed);

template <class T>
void read_entry(const YamlEntry& entry, T& value) {
  if (const char* allowed = parse_value(entry.value, value)) reject_entry(entry, allowed);
}

}  // namespace apex::opt_levels::detail
