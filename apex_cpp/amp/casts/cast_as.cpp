#include <apex_cpp/amp/casts/cast_as.h>

#include <apex_cpp/amp/casts/cast_plan.h>

namespace apex::amp::detail {

void cast_as(const OperatorSlot& slot, std::initializer_list<at::Tensor*> tensors) {
  const CallPolicies policies(slot);
  if (!policies.any()) return;
  ArgumentTypes types;
  types.rules = policies.rules();
  for (const at::Tensor* tensor : tensors) types.add(*tensor);
  const CastPlan plan = policies.plan(types);
  if (!plan.takes_over()) return;
  for (at::Tensor* tensor : tensors) {
    if (plan.casts(*tensor)) *tensor = plan.cast(*tensor);
  }
}

}  // namespace apex::amp::detail
