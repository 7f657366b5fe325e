#pragma once

#include <string>
#include <utility>
#include <vector>

#include "opt_levels/detail/values.h"

// The one place that knows the YAML library: everything else sees keys, scalars and where they stand.
namespace apex::opt_levels::detail {

/// One `key: value` of a document. Places read "source:line:column", counted from 1.
struct YamlEntry {
  std::string key;
  std::string key_place;
  Scalar value;
  std::string value_place;
};

/// Reads the map of scalars that a document is, or the one under its top-level key `amp`: then the other top-level keys
/// are somebody else's. Errors: ValueError, with the place, for text that is no such YAML, a key that is not in
/// `known_keys` or stands twice, and a value that is a list or a map.
std::vector<YamlEntry> read_yaml_map(const std::string& text, const std::string& source,
                                     const std::vector<std::string>& known_keys);

/// The reverse, one `key: value` a line.
std::string write_yaml_map(const std::vector<std::pair<std::string, std::string>>& entries);

/// Reads the entry's value. Errors: ValueError with place, key, what was found and what is allowed.
template <class T>
void read_entry(const YamlEntry& entry, T& value);

/// Refuses the entry's value with the same message.
[[noreturn]] void reject_entry(const YamlEntry& entry, const std::string& allowed);

template <class T>
void read_entry(const YamlEntry& entry, T& value) {
  if (const char* allowed = parse_value(entry.value, value)) reject_entry(entry, allowed);
}

}  // namespace apex::opt_levels::detail
