#include "opt_levels/properties.h"

#include "opt_levels/detail/values.h"

#include <c10/util/Exception.h>

#include <tuple>

namespace apex::opt_levels {

LossScale::LossScale(const std::string& text) : dynamic(text == "dynamic") {
  if (dynamic) return;
  const auto number = detail::parse_number(text);
  TORCH_CHECK_VALUE(number, "loss_scale=\"", text, "\" is not a number. Give a positive number, or \"dynamic\".");
  value = *number;
}

namespace {

auto as_tuple(const Properties& p) {
  return std::tie(p.enabled, p.opt_level, p.cast_model_type, p.patch_torch_functions, p.patch_functions_type,
                  p.keep_batchnorm_fp32, p.master_weights, p.loss_scale);
}

}  // namespace

bool operator==(const Properties& a, const Properties& b) { return as_tuple(a) == as_tuple(b); }

std::vector<std::pair<std::string, std::string>> describe(const Properties& p) {
  using detail::value_text;
  return {
      {"enabled", value_text(p.enabled)},
      {"opt_level", p.opt_level.empty() ? "none" : p.opt_level},
      {"cast_model_type", value_text(p.cast_model_type)},
      {"patch_torch_functions", value_text(p.patch_torch_functions)},
      {"keep_batchnorm_fp32", value_text(p.keep_batchnorm_fp32)},
      {"master_weights", value_text(p.master_weights)},
      {"loss_scale", value_text(p.loss_scale)},
  };
}

}  // namespace apex::opt_levels
