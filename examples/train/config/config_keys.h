#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace train {

/// The keys of a config, visited one by one. Reading and writing share one description (config.cpp), so a key that can be
/// read is always written back with the value in use.
///
/// On reading, a key that is absent leaves its value as it is; a choice, list or number that is still unset then (empty, NaN)
/// is a mistake. Reading goes on after a mistake, with a value that may be unset or out of range, and ends in a UserError with
/// all of them: a line `file:line:col: key 'a.b': what is wrong` for each.
class ConfigKeys {
 public:
  virtual ~ConfigKeys() = default;
  /// Whether the text has the key; false on writing. For keys that stand in place of one another.
  virtual bool has(const std::string& key) = 0;
  virtual void text(const std::string& key, std::string& value) = 0;
  virtual void choice(const std::string& key, std::string& value, const std::vector<std::string>& allowed) = 0;
  virtual void integer(const std::string& key, int64_t& value, int64_t low, int64_t high) = 0;
  virtual void real(const std::string& key, double& value, double low, double high) = 0;
  virtual void flag(const std::string& key, bool& value) = 0;
  virtual void integers(const std::string& key, std::vector<int64_t>& values, int64_t low, int64_t high) = 0;
  /// A list of texts and mappings, each given to `take`, whose UserError is a mistake at the entry's place. A mapping is given
  /// as YAML in braces, behind as many blanks as give it its line and column. No config that is written has such a list.
  /// `example` is for messages: "[O1, O2]".
  virtual void entries(const std::string& /*key*/, const std::string& /*example*/,
                       const std::function<void(const std::string&)>& /*take*/) {}
  virtual void section(const std::string& key, const std::function<void(ConfigKeys&)>& describe) = 0;
  /// A mapping that another reader understands: `read` is given its text, and a UserError of it is a mistake. The text keeps
  /// its lines and columns: everything before it is blanked. On writing the text is `written`.
  virtual void block(const std::string& key, const std::function<void(const std::string&)>& read,
                     const std::string& written) = 0;
  /// Refuses a value that fits its own range but not its neighbours, where each of these is right. Returns `holds`.
  virtual bool require(bool holds, const std::string& key, const std::string& otherwise) = 0;
};

/// Reads `text`; unknown and repeated keys are errors. `source` names the file in messages.
void read_keys(const std::string& text, const std::string& source, const std::function<void(ConfigKeys&)>& describe);

/// Writes what `describe` visits as YAML that `read_keys` accepts.
std::string write_keys(const std::function<void(ConfigKeys&)>& describe);

}  // namespace train
