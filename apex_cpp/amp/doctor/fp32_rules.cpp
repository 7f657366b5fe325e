#include <apex_cpp/amp/doctor/fp32_rules.h>

#include <algorithm>
#include <set>

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>

namespace apex::amp::detail {
namespace {

bool has_low_precision(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return is_low_precision(tensor.scalar_type()); });
}

}  // namespace

bool append_new(const Fp32Rules& more, Fp32Rules& list) {
  const size_t before = list.size();
  for (const auto& rule : more) {
    if (std::find(list.begin(), list.end(), rule) == list.end()) list.push_back(rule);
  }
  return list.size() > before;
}

Fp32Rules rules_for(const ObservedCall& call) {
  Fp32Rules list;
  if (!call.module.empty()) {
    if (call.returns_new_tensor || !call.inner_ops.empty()) list.push_back({true, call.module});
  } else if (call.returns_new_tensor) {
    list.push_back({false, call.op});
  }
  for (const auto& op : call.inner_ops) {
    if (call.module.empty()) append_new({{false, op}}, list);
  }
  return list;
}

Fp32Rules rules_for_step(const ObservedStep& step) {
  Fp32Rules list;
  for (const auto& call : step.calls) {
    if (has_low_precision(call.inputs) || has_low_precision(call.outputs)) append_new(rules_for(call), list);
  }
  return list;
}

std::vector<std::string> modules_in_float8(const ObservedStep& step) {
  std::vector<std::string> modules;
  for (const auto& call : step.calls) {
    const std::string& path = call.module.empty() ? call.root_parameter : call.module;
    if (path.empty() || step.float8_operators.count(call.op) == 0 || is_within(path, step.bfloat16_modules)) continue;
    if (std::find(modules.begin(), modules.end(), path) == modules.end()) modules.push_back(path);
  }
  return modules;
}

opt_levels::OptLevel with_rules(const opt_levels::OptLevel& level, const Fp32Rules& rules) {
  auto modules = level.overrides().float32_modules().value_or(std::vector<std::string>());
  auto functions = level.overrides().float32_functions().value_or(std::vector<std::string>());
  for (const auto& [is_module, name] : rules) (is_module ? modules : functions).push_back(name);
  std::sort(modules.begin(), modules.end());
  std::sort(functions.begin(), functions.end());
  opt_levels::InitializeOptions options;
  if (!modules.empty()) options.float32_modules(modules);
  if (!functions.empty()) options.float32_functions(functions);
  return level.with(options);
}

}  // namespace apex::amp::detail
