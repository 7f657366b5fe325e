#include "opt_levels/levels_above.h"

#include <optional>
#include <string>

#include "opt_levels/detail/presets.h"

namespace apex::opt_levels {
namespace {

using detail::preset;

bool is_of_bfloat16(const OptLevel& level) {
  const auto& type = level.overrides().cast_model_type();
  return type && *type == c10::kBFloat16;
}

std::string kin_of_bfloat16(const std::string& name) {
  const auto& kin = preset(name).in_bfloat16;
  return kin.empty() ? name : kin;
}

// The level of that name, with what `from` overrides at every level.
OptLevel with_overrides(const std::string& name, const OptLevel& from) {
  auto kept = from.overrides();
  kept.enabled(std::nullopt).cast_model_type(std::nullopt).patch_torch_functions(std::nullopt);
  kept.keep_batchnorm_fp32(std::nullopt).master_weights(std::nullopt).cast_model_outputs(std::nullopt).casts(std::nullopt);
  kept.loss_scale(std::nullopt).min_loss_scale(std::nullopt).max_loss_scale(std::nullopt);
  return OptLevel::named(name).with(kept);
}

}  // namespace

std::vector<OptLevel> levels_above(const OptLevel& level) {
  std::vector<OptLevel> levels;
  if (!level.overrides().enabled().value_or(true)) return levels;
  const bool bfloat16 = is_of_bfloat16(level);
  const auto kin = [bfloat16](const std::string& name) { return bfloat16 ? kin_of_bfloat16(name) : name; };
  for (auto name = preset(kin(level.name())).level_above; !name.empty(); name = preset(name).level_above) {
    name = kin(name);
    levels.push_back(with_overrides(name, level));
  }
  return levels;
}

}  // namespace apex::opt_levels
