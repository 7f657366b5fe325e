#include "opt_levels/opt_level.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "opt_levels/detail/option_fields.h"
#include "opt_levels/detail/presets.h"
#include "opt_levels/detail/yaml_map.h"
#include "opt_levels/resolve.h"

namespace apex::opt_levels {
namespace {

using detail::OptionFields;
using detail::YamlEntry;

constexpr const char* kOptLevel = "opt_level";
constexpr const char* kDefaultLevel = "O1";

std::vector<std::string> yaml_keys() {
  std::vector<std::string> keys{kOptLevel};
  const InitializeOptions none;
  OptionFields::visit(none, [&](const char* name, const auto&) { keys.emplace_back(name); });
  return keys;
}

template <class T>
void read_option(const YamlEntry& entry, std::optional<T>& option) {
  T value{};
  detail::read_entry(entry, value);
  option = value;
}

// PROP-14: Apex also takes the strings "True" and "False", as a command line would give them.
void read_keep_batchnorm(YamlEntry entry, InitializeOptions& options) {
  auto& [text, quoted] = entry.value;
  if (text == "True" || text == "False") quoted = false;
  bool value = false;
  detail::read_entry(entry, value);
  options.keep_batchnorm_fp32(value);
}

void read_override(const YamlEntry& entry, InitializeOptions& options) {
  if (entry.value.is_none()) return;
  if (entry.key == "keep_batchnorm_fp32") return read_keep_batchnorm(entry, options);
  OptionFields::visit(options, [&](const std::string& name, auto& option) {
    if (name == entry.key) read_option(entry, option);
  });
}

template <class T>
std::string option_text(const T& value) {
  return detail::value_text(value);
}

// As an override, none would mean that there is none.
std::string option_text(const std::optional<c10::ScalarType>& value) { return value ? detail::value_text(*value) : "false"; }

}  // namespace

OptLevel::OptLevel(std::string name) : name_(std::move(name)) {}

OptLevel::OptLevel(const char* name) {
  TORCH_CHECK_VALUE(name, "an OptLevel was made from a null pointer. Give a name such as \"O2\".");
  name_ = name;
}

OptLevel OptLevel::named(const std::string& name) {
  detail::preset(name);
  return OptLevel(name);
}

OptLevel OptLevel::from_yaml_file(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file && !is_folder, "cannot read the opt level file '", path,
              "': ", is_folder ? "it is a folder" : std::strerror(errno), ".");
  std::ostringstream text;
  text << file.rdbuf();
  return from_yaml_string(text.str(), path);
}

OptLevel OptLevel::from_yaml_string(const std::string& text, const std::string& source_name) {
  OptLevel level(kDefaultLevel);
  for (const auto& entry : detail::read_yaml_map(text, source_name, yaml_keys())) {
    level.places_.emplace(entry.key, entry.value_place);
    if (entry.key == kOptLevel) {
      level.name_ = entry.value.text;
    } else {
      read_override(entry, level.overrides_);
    }
  }
  resolve(level);  // what the level forbids is refused here, where the place is at hand
  return level;
}

std::string OptLevel::to_yaml() const {
  std::vector<std::pair<std::string, std::string>> entries{{kOptLevel, name_}};
  OptionFields::visit(overrides_, [&](const std::string& name, const auto& option) {
    if (option) entries.emplace_back(name, option_text(*option));
  });
  return detail::write_yaml_map(entries);
}

const std::string& OptLevel::description() const { return detail::preset(name_, place_of(kOptLevel)).description; }

const Properties& OptLevel::preset() const { return detail::preset(name_, place_of(kOptLevel)).properties; }

std::string OptLevel::place_of(const std::string& key) const {
  const auto found = places_.find(key);
  return found == places_.end() ? "" : found->second;
}

}  // namespace apex::opt_levels
