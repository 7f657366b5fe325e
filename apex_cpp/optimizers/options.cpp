#include <apex_cpp/optimizers/options.h>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <typeinfo>

namespace apex::optimizers::detail {

std::ostream& operator<<(std::ostream& out, const OptionsOwner& owner) {
  if (owner.group) out << "Group " << *owner.group << " of ";
  return out << owner.optimizer;
}

void check_class(const OptionsRules& rules, size_t group, const torch::optim::OptimizerOptions& options) {
  TORCH_CHECK_TYPE(rules.are_own(options), "Group ", group, " of ", rules.optimizer, " has options of the class ",
                   c10::demangle(typeid(options).name()), ". Give it ", rules.optimizer,
                   "Options, or none: the group then has the optimizer's options.");
}

void check_options(const OptionsRules& rules, size_t group, const torch::optim::OptimizerOptions& options, bool checks_lr) {
  check_class(rules, group, options);
  const OptionsOwner owner{rules.optimizer, group, checks_lr};
  TORCH_CHECK_TYPE(static_cast<const GuardedOptions&>(options).is_intact(), owner,
                   ": the options were written after a cast to another class, such as torch::optim::AdamOptions, which sets "
                   "no option. Cast to ",
                   rules.optimizer, "Options, or call options().set_lr(rate), which works for every class.");
  rules.check_values(owner, options);
}

}  // namespace apex::optimizers::detail
