#include "opt_levels/opt_level.h"

#include "opt_levels/detail/cast_reader.h"
#include "opt_levels/detail/presets.h"
#include "opt_levels/detail/values.h"
#include "opt_levels/detail/yaml_map.h"
#include "opt_levels/resolve.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace apex::opt_levels {
namespace {

using detail::OptionFields;
using detail::YamlEntry;

constexpr const char* kOptLevel = "opt_level";
constexpr const char* kDefaultLevel = "O1";

detail::YamlForm level_form() {
  std::vector<std::string> keys{kOptLevel};
  const InitializeOptions none;
  OptionFields::visit(none, [&](const char* name, const auto&) { keys.emplace_back(name); });
  return {keys, {"casts", "float32_modules", "float32_functions", "bfloat16_modules"}, "opt_level: O2", true};
}

// Reads the options of a level. Relative paths in the document start from `folder`.
class OverrideReader {
 public:
  explicit OverrideReader(std::string folder) : folder_(std::move(folder)) {}

  void read(const YamlEntry& entry, InitializeOptions& options) const {
    if (entry.key == "fp8") return read_fp8(entry, options);
    if (entry.is_none()) return;
    if (entry.key == "keep_batchnorm_fp32") return read_keep_batchnorm(entry, options);
    OptionFields::visit(options, [&](const std::string& name, auto& option) {
      if (name == entry.key) read_option(entry, option);
    });
  }

 private:
  template <class T>
  void read_option(const YamlEntry& entry, std::optional<T>& option) const {
    T value{};
    detail::read_entry(entry, value);
    option = value;
  }

  // The value is the path of a file, or the lists themselves.
  void read_option(const YamlEntry& entry, std::optional<CastLists>& option) const {
    if (entry.kind == YamlEntry::Kind::scalar) {
      option = CastLists::from_yaml_file((std::filesystem::path(folder_) / entry.value.text).string());
    } else {
      detail::check_kind(entry, YamlEntry::Kind::map, "a path, or a map such as 'base: built_in'");
      option = detail::CastReader::read(entry.children);
    }
  }

  void read_option(const YamlEntry& entry, std::optional<std::vector<std::string>>& option) const {
    detail::check_kind(entry, YamlEntry::Kind::list, "a list of names");
    std::vector<std::string> names;
    for (const auto& item : entry.children) {
      detail::check_kind(item, YamlEntry::Kind::scalar, "a name");
      detail::read_entry(item, names.emplace_back());
    }
    option = std::move(names);
  }

  // PROP-14: Apex also takes the strings "True" and "False", as a command line passes them.
  static void read_keep_batchnorm(YamlEntry entry, InitializeOptions& options) {
    auto& [text, quoted] = entry.value;
    if (text == "True" || text == "False") quoted = false;
    bool value = false;
    detail::read_entry(entry, value);
    options.keep_batchnorm_fp32(value);
  }

  // Here `none` is a recipe, which switches FP8 off at O6. Any other empty value, such as null, leaves the option unset.
  static void read_fp8(YamlEntry entry, InitializeOptions& options) {
    auto& text = entry.value.text;
    if (text == "None") text = "none";
    if (entry.is_none() && text != "none") return;
    Float8Recipe recipe{};
    detail::read_entry(entry, recipe);
    options.fp8(recipe);
  }

  std::string folder_;
};

// Whether the check of one option reads the other: with one of the two alone, `resolve` may reject what both together allow.
bool are_checked_together(const std::string& a, const std::string& b) {
  return (a == "fp8" && b == "cast_model_type") || (a == "cast_model_type" && b == "fp8");
}

// The errors that `resolve` throws for each of the level's options alone. `options` are the level's own; they are restored.
std::vector<std::string> errors_by_option(const OptLevel& level, InitializeOptions& options) {
  std::vector<std::string> texts;
  const InitializeOptions all = options;
  OptionFields::visit(all, [&](const std::string& name, const auto& option) {
    if (!option) return;
    options = all;
    OptionFields::visit(options, [&](const std::string& other, auto& value) {
      if (other != name && !are_checked_together(other, name)) value.reset();
    });
    try {
      resolve(level);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
    }
  });
  options = all;
  return texts;
}

// Errors: as `resolve`. If it rejects several options, one error has a line for each.
void check_settings(const OptLevel& level, InitializeOptions& options) {
  try {
    resolve(level);
  } catch (const c10::Error& first) {
    const auto texts = errors_by_option(level, options);
    if (texts.size() < 2) throw;
    TORCH_CHECK_VALUE(!dynamic_cast<const c10::ValueError*>(&first), detail::join(texts, "\n"));
    TORCH_CHECK(false, detail::join(texts, "\n"));
  }
}

using TextEntries = std::vector<std::pair<std::string, std::string>>;

template <class T>
void write_option(const std::string& name, const T& value, TextEntries& entries) {
  entries.emplace_back(name, detail::value_text(value));
}

// As an override, `none` would mean that the option is not set, so a missing type is written as `false`.
void write_option(const std::string& name, const std::optional<c10::ScalarType>& value, TextEntries& entries) {
  entries.emplace_back(name, value ? detail::value_text(*value) : "false");
}

// Maps and lists are written as blocks after the single values.
void write_option(const std::string&, const CastLists&, TextEntries&) {}
void write_option(const std::string&, const std::vector<std::string>&, TextEntries&) {}

std::string list_text(const char* name, const std::optional<std::vector<std::string>>& names) {
  if (!names) return "";
  return names->empty() ? std::string(name) + ": []\n" : detail::write_yaml_list(name, *names);
}

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
  return from_yaml_string(detail::read_file(path, "opt level file"), path, std::filesystem::path(path).parent_path().string());
}

OptLevel OptLevel::from_yaml_string(const std::string& text, const std::string& source_name, const std::string& folder) {
  OptLevel level(kDefaultLevel);
  const OverrideReader reader(folder);
  detail::Mistakes mistakes;
  for (const auto& entry : detail::read_yaml_map(text, source_name, level_form(), mistakes)) {
    level.places_.emplace(entry.key, entry.value_place);
    if (entry.key == kOptLevel) {
      level.name_ = entry.value.text;
    } else {
      mistakes.collect([&] { reader.read(entry, level.overrides_); });
    }
  }
  mistakes.check();
  OptLevel copy = level;
  check_settings(copy, copy.overrides_);  // throws for forbidden values while their places are known
  return level;
}

std::string OptLevel::to_yaml() const {
  TextEntries entries{{kOptLevel, name_}};
  OptionFields::visit(overrides_, [&](const std::string& name, const auto& option) {
    if (option) write_option(name, *option, entries);
  });
  const auto& casts = overrides_.casts();
  return detail::write_yaml_map(entries) + (casts ? "casts:\n" + detail::indented(casts->to_yaml()) : "") +
         list_text("float32_modules", overrides_.float32_modules()) +
         list_text("float32_functions", overrides_.float32_functions()) +
         list_text("bfloat16_modules", overrides_.bfloat16_modules());
}

OptLevel OptLevel::with(const InitializeOptions& options) const {
  OptLevel level = *this;
  OptionFields::visit_pairs(level.overrides_, options, [&](const char* name, auto& own, const auto& other) {
    if (!other) return;
    own = other;
    level.places_.erase(name);
  });
  return level;
}

const std::string& OptLevel::description() const { return detail::preset(name_, place_of(kOptLevel)).description; }

const Properties& OptLevel::preset() const { return detail::preset(name_, place_of(kOptLevel)).properties; }

std::string OptLevel::place_of(const std::string& key) const {
  const auto found = places_.find(key);
  return found == places_.end() ? "" : found->second;
}

namespace {

using detail::preset;

bool is_cast_to_bfloat16(const OptLevel& level) {
  const auto& type = level.overrides().cast_model_type();
  return type && *type == c10::kBFloat16;
}

std::string bfloat16_counterpart(const std::string& name) {
  const auto& counterpart = preset(name).in_bfloat16;
  return counterpart.empty() ? name : counterpart;
}

bool has_fp8(const OptLevel& level) { return level.overrides().fp8().value_or(preset(level.name()).fp8) != Float8Recipe::none; }

// The level that the overrides of bfloat16 and FP8 make of this one, where there is such a level.
std::string name_with_types(const OptLevel& level) {
  const auto name = is_cast_to_bfloat16(level) ? bfloat16_counterpart(level.name()) : level.name();
  const bool is_fp8_level = preset(name).fp8 != Float8Recipe::none;
  if (is_fp8_level && !has_fp8(level)) return preset(name).level_above;
  return has_fp8(level) && !preset(name).in_fp8.empty() ? preset(name).in_fp8 : name;
}

// The level of that name, with those overrides of `from` that every level allows.
OptLevel with_overrides(const std::string& name, const OptLevel& from) {
  auto kept = from.overrides();
  kept.enabled(std::nullopt).cast_model_type(std::nullopt).patch_torch_functions(std::nullopt);
  kept.keep_batchnorm_fp32(std::nullopt).master_weights(std::nullopt).cast_model_outputs(std::nullopt).casts(std::nullopt);
  kept.loss_scale(std::nullopt).min_loss_scale(std::nullopt).max_loss_scale(std::nullopt);
  kept.fp8(std::nullopt).fp8_gradients(std::nullopt).fp8_convolutions(std::nullopt).bfloat16_modules(std::nullopt);
  return OptLevel::named(name).with(kept);
}

}  // namespace

std::vector<OptLevel> levels_above(const OptLevel& level) {
  std::vector<OptLevel> levels;
  if (!level.overrides().enabled().value_or(true)) return levels;
  const bool bfloat16 = is_cast_to_bfloat16(level);
  const auto counterpart = [bfloat16](const std::string& name) { return bfloat16 ? bfloat16_counterpart(name) : name; };
  for (auto name = preset(name_with_types(level)).level_above; !name.empty(); name = preset(name).level_above) {
    name = counterpart(name);
    levels.push_back(with_overrides(name, level));
  }
  return levels;
}

}  // namespace apex::opt_levels
