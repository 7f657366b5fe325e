#include <apex_cpp/optimizers/options.h>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <typeinfo>

namespace apex::optimizers::detail {

void check_class(const OptionsRules& rules, size_t group, const torch::optim::OptimizerOptions& options) {
  TORCH_CHECK_TYPE(rules.are_own(options), "Group ", group, " of ", rules.optimizer, " has options of the class ",
                   c10::demangle(typeid(options).name()), ". Give it ", rules.optimizer,
                   "Options, or none: the group then has the optimizer's options.");
}

void check_options(const OptionsRules& rules, size_t group, const torch::optim::OptimizerOptions& options) {
  check_class(rules, group, options);
  rules.check_values("Group " + std::to_string(group) + " of " + rules.optimizer, options);
}

}  // namespace apex::optimizers::detail
