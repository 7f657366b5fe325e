#include "opt_levels/initialize_options.h"

#include <c10/util/Exception.h>

#include "opt_levels/detail/values.h"

namespace apex::opt_levels {

InitializeOptions& InitializeOptions::keep_batchnorm_fp32(const std::string& value) {
  TORCH_CHECK(value == "True" || value == "False", "keep_batchnorm_fp32=\"", value,
              "\" is not allowed. Give a bool, or the string \"True\" or \"False\".");
  return keep_batchnorm_fp32(value == "True");
}

InitializeOptions& InitializeOptions::leave_model_alone(bool value) {
  TORCH_CHECK_VALUE(!value,
                    "cast_model_type=true is not a type. Give kHalf, kBFloat16 or kFloat, or false to leave the "
                    "model alone.");
  return set(cast_model_type_, std::nullopt);
}

InitializeOptions& InitializeOptions::cpu_16bit(const std::string& name) {
  Cpu16Bit value{};
  const char* allowed = detail::parse_value({name, true}, value);
  TORCH_CHECK_VALUE(!allowed, "cpu_16bit=\"", name, "\" is not allowed. Give ", allowed, ".");
  return cpu_16bit(value);
}

bool operator==(const InitializeOptions& a, const InitializeOptions& b) {
  bool equal = true;
  detail::OptionFields::visit_pairs(a, b, [&](const char*, const auto& left, const auto& right) { equal &= left == right; });
  return equal;
}

}  // namespace apex::opt_levels
