#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <utility>
#include <vector>

#include "opt_levels/detail/values.h"

// The one place that knows the YAML library: everything else sees keys, scalars and where they stand.
namespace apex::opt_levels::detail {

/// One `key: value` of a document, or one item of a list, which has no key. Places read "source:line:column", counted from 1.
struct YamlEntry {
  enum class Kind { scalar, list, map };

  std::string key;
  std::string key_place;
  Kind kind = Kind::scalar;
  Scalar value;  // of a scalar
  std::string value_place;
  std::vector<YamlEntry> children;  // of a list or a map

  /// A scalar that is none, null or nothing at all.
  bool is_none() const { return kind == Kind::scalar && value.is_none(); }
};

/// What a document may hold.
struct YamlForm {
  std::vector<std::string> keys;
  std::vector<std::string> nested;  ///< those of the keys whose value may be a list or a map
  std::string example;              ///< a line of such a document, for messages
  bool may_stand_under_amp = false;
};

/// The mistakes of a document, which are reported together.
class Mistakes {
 public:
  /// Does the action, and keeps a ValueError of it.
  template <class Action>
  void collect(Action&& action) {
    try {
      action();
    } catch (const c10::ValueError& error) {
      texts_.emplace_back(error.what_without_backtrace());
    }
  }
  /// Errors: ValueError with all that were kept, each on a line of its own.
  void check() const;

 private:
  std::vector<std::string> texts_;
};

/// Reads the map that a document is, or, where the form has it, the one under its top-level key `amp`: then the other top-level
/// keys are somebody else's. Errors: ValueError, with the place, for text that is no such YAML, a key that is not in the form
/// or stands twice, and a list or a map where a single value belongs. `mistakes` keeps those of single entries, which are
/// then left out of the result; without it they are thrown.
std::vector<YamlEntry> read_yaml_map(const std::string& text, const std::string& source, const YamlForm& form,
                                     Mistakes& mistakes);
std::vector<YamlEntry> read_yaml_map(const std::string& text, const std::string& source, const YamlForm& form);

/// The column, from 1, of a tab in the blanks that the line begins with, where YAML has spaces alone; 0: there is none.
std::size_t column_of_tab(const std::string& text, int line);

/// Errors: ValueError, with the place, unless the entry's key is one of these.
void check_key(const YamlEntry& entry, const std::vector<std::string>& known_keys);

/// The reverse, one `key: value` a line.
std::string write_yaml_map(const std::vector<std::pair<std::string, std::string>>& entries);

/// `key:` and below it a list of the items.
std::string write_yaml_list(const std::string& key, const std::vector<std::string>& items);

/// Every line of the text two columns further in.
std::string indented(const std::string& text);

/// Reads the entry's value. Errors: ValueError with place, key, what was found and what is allowed.
template <class T>
void read_entry(const YamlEntry& entry, T& value);

/// Errors: ValueError, with the place, unless the entry's value is of this kind.
void check_kind(const YamlEntry& entry, YamlEntry::Kind kind, const std::string& allowed);

/// Refuses the entry's value with the same message.
[[noreturn]] void reject_entry(const YamlEntry& entry, const std::string& allowed);

template <class T>
void read_entry(const YamlEntry& entry, T& value) {
  if (const char* allowed = parse_value(entry.value, value)) reject_entry(entry, allowed);
}

}  // namespace apex::opt_levels::detail
