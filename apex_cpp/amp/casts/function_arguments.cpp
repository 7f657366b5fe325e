#include <apex_cpp/amp/casts/function_arguments.h>

#include <apex_cpp/amp/casts/cast_plan.h>
#include <apex_cpp/amp/casts/operator_slot.h>

namespace apex::amp::detail {
namespace {

/// Names under which wrapped callables print their casts.
const OperatorSlot& function_name(CastPolicy policy) {
  static const OperatorSlot half("amp::half_function", 0), float32("amp::float_function", 0),
      promote("amp::promote_function", 0);
  if (policy == CastPolicy::half) return half;
  return policy == CastPolicy::float32 ? float32 : promote;
}

}  // namespace

std::shared_ptr<const CastPlan> plan_for_function(CastPolicy policy, const FunctionArgumentTypes& arguments) {
  ArgumentTypes types;
  types.all = arguments.all;
  types.self = arguments.first;
  const CastPlan plan = plan_for_call(policy, function_name(policy), types);
  return plan.takes_over() ? std::make_shared<const CastPlan>(plan) : nullptr;
}

at::Tensor cast_by(const CastPlan& plan, const at::Tensor& tensor) { return plan.casts(tensor) ? plan.cast(tensor) : tensor; }

}  // namespace apex::amp::detail
