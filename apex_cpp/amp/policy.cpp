#include <apex_cpp/amp/policy.h>

#include <c10/util/Exception.h>

#include <array>
#include <mutex>

namespace apex::amp {
namespace {

struct Row {
  const char* name;
  c10::ScalarType compute_dtype;
  c10::ScalarType variable_dtype;
  const char* level;  // in YAML
};
constexpr std::array<Row, 5> kPolicies{{
    {"float32", c10::kFloat, c10::kFloat, "opt_level: O0"},
    {"mixed_float16", c10::kHalf, c10::kFloat, "opt_level: O1"},
    {"mixed_bfloat16", c10::kBFloat16, c10::kFloat, "opt_level: O4"},
    {"float16", c10::kHalf, c10::kHalf, "opt_level: O3"},
    {"bfloat16", c10::kBFloat16, c10::kBFloat16, "{opt_level: O3, cast_model_type: bfloat16}"},
}};

const Row& row_named(const std::string& name) {
  std::string names;
  for (const auto& row : kPolicies) {
    if (row.name == name) return row;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  C10_THROW_ERROR(ValueError, "amp::Policy: there is no policy '" + name + "'. Use one of " + names + ".");
}

struct Global {
  std::mutex mutex;
  Policy policy{"float32"};
};

Global& global() {
  static Global global;
  return global;
}

}  // namespace

Policy::Policy(const std::string& name)
    : name_(name),
      compute_dtype_(row_named(name).compute_dtype),
      variable_dtype_(row_named(name).variable_dtype),
      level_(opt_levels::OptLevel::from_yaml_string(row_named(name).level, "amp::Policy(\"" + name + "\")")) {}

void set_global_policy(const Policy& policy) {
  const std::lock_guard<std::mutex> lock(global().mutex);
  global().policy = policy;
}

Policy global_policy() {
  const std::lock_guard<std::mutex> lock(global().mutex);
  return global().policy;
}

}  // namespace apex::amp
