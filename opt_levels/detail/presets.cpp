#include "opt_levels/detail/presets.h"

#include "opt_levels/detail/values.h"
#include "opt_levels/detail/yaml_map.h"
#include "opt_levels/embedded.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <system_error>

namespace apex::opt_levels::detail {
namespace {

const YamlForm& preset_form() {
  static const YamlForm form{
      {"opt_level", "description", "enabled", "cast_model_type", "patch_torch_functions", "patch_functions_type",
       "keep_batchnorm_fp32", "master_weights", "loss_scale", "fp8", "level_above", "in_bfloat16", "in_fp8"},
      {},
      "opt_level: O2"};
  return form;
}

void read_property(const YamlEntry& entry, Preset& preset) {
  Properties& properties = preset.properties;
  if (entry.key == "opt_level") read_entry(entry, properties.opt_level);
  if (entry.key == "description") read_entry(entry, preset.description);
  if (entry.key == "enabled") read_entry(entry, properties.enabled);
  if (entry.key == "cast_model_type") read_entry(entry, properties.cast_model_type);
  if (entry.key == "patch_torch_functions") read_entry(entry, properties.patch_torch_functions);
  if (entry.key == "patch_functions_type") read_entry(entry, properties.patch_functions_type);
  if (entry.key == "keep_batchnorm_fp32") read_entry(entry, properties.keep_batchnorm_fp32);
  if (entry.key == "master_weights") read_entry(entry, properties.master_weights);
  if (entry.key == "loss_scale") read_entry(entry, properties.loss_scale);
  if (entry.key == "fp8") read_entry(entry, preset.fp8);
  if (entry.key == "level_above") read_entry(entry, preset.level_above);
  if (entry.key == "in_bfloat16") read_entry(entry, preset.in_bfloat16);
  if (entry.key == "in_fp8") read_entry(entry, preset.in_fp8);
}

std::map<std::string, Preset> read_presets() {
  using namespace embedded;
  std::map<std::string, Preset> presets;
  for (const std::string_view text : {O0, O1, O2, O3, O4, O5, O6}) {
    Preset preset;
    for (const auto& entry : read_yaml_map(std::string(text), "<opt level>", preset_form())) read_property(entry, preset);
    presets.emplace(preset.properties.opt_level, std::move(preset));
  }
  return presets;
}

const std::map<std::string, Preset>& presets() {
  static const auto read_once = read_presets();
  return read_once;
}

}  // namespace

std::vector<std::string> level_names() {
  std::vector<std::string> names;
  for (const auto& [name, preset] : presets()) names.push_back(name);
  return names;
}

const Preset& preset(const std::string& name, const std::string& place) {
  const auto found = presets().find(name);
  const bool has_none = !place.empty() && Scalar{name}.is_none();  // the YAML has the key without a value
  TORCH_CHECK(
      found != presets().end(), place, place.empty() ? "" : ": ",
      has_none ? "opt_level has no value; without this line the level is O1, as in Apex" : "unknown opt_level '" + name + "'",
      ". The levels are ", join(level_names()), ": a capital letter O, not the digit zero, then a digit.");
  return found->second;
}

std::string read_file(const std::string& path, const std::string& what) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file && !is_folder, "cannot read the ", what, " '", path,
              "': ", is_folder ? "it is a folder" : std::strerror(errno), ".");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace apex::opt_levels::detail
