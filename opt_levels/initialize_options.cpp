#include "opt_levels/initialize_options.h"

#include <c10/util/Exception.h>

#include "opt_levels/detail/values.h"

namespace apex::opt_levels {
namespace {

// The value of that name. Errors: ValueError that names the option and lists the names.
template <class Value>
Value named_value(const char* option, const std::string& name) {
  Value value{};
  const char* allowed = detail::parse_value({name, true}, value);
  TORCH_CHECK_VALUE(!allowed, option, "=\"", name, "\" is not allowed. Give ", allowed, ".");
  return value;
}

}  // namespace

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
  return cpu_16bit(named_value<Cpu16Bit>("cpu_16bit", name));
}

InitializeOptions& InitializeOptions::fp8(const std::string& name) { return fp8(named_value<Float8Recipe>("fp8", name)); }

InitializeOptions& InitializeOptions::fp8_gradients(const std::string& name) {
  return fp8_gradients(named_value<Float8Format>("fp8_gradients", name));
}

bool operator==(const InitializeOptions& a, const InitializeOptions& b) {
  bool equal = true;
  detail::OptionFields::visit_pairs(a, b, [&](const char*, const auto& left, const auto& right) { equal &= left == right; });
  return equal;
}

}  // namespace apex::opt_levels
