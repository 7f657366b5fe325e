#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <apex_cpp/amp/casts/argument_cast.h>
#include <apex_cpp/amp/casts/dispatch.h>

#include <type_traits>

namespace apex::amp::detail {

/// What the policies come to for a call with these arguments, `Args` being their types in the operator's schema.
template <class... Args>
CastPlan plan_for(const CallPolicies& policies, const std::remove_reference_t<Args>&... args) {
  ArgumentTypes types;
  types.rules = policies.rules();
  (ArgumentCast<Args>::look(types, args), ...);
  return policies.plan(types);
}

/// The engine's kernel for one ATen operator, `Op` being its struct in `at::_ops`: casts the arguments as the calling thread's
/// rules say, then calls what lies below, by `Below`, where nothing is cast any more.
template <class Op, class Below = Op, class Schema = typename Op::schema>
struct UnboxedKernel;

template <class Op, class Below, class Result, class... Args>
struct UnboxedKernel<Op, Below, Result(Args...)> {
  static inline OperatorSlot* slot = nullptr;

  static Result call(c10::DispatchKeySet keys, Args... args) {
    keys = keys & kBelowCastKey;
    const CallPolicies policies(*slot);
    if (!policies.any()) return Below::redispatch(keys, static_cast<Args&&>(args)...);
    const CastPlan plan = plan_for<Args...>(policies, args...);
    const c10::impl::ExcludeDispatchKeyGuard off(plan.off_inside());
    return Below::redispatch(keys - plan.off_inside(), ArgumentCast<Args>(plan, static_cast<Args&&>(args)).get()...);
  }

  static void register_in(torch::Library& library) {
    slot = &operator_slot(Op::name, Op::overload_name);
    library.impl(slot->name.c_str(), TORCH_FN(call));
  }
};

/// Operators that have such a kernel.
template <class... Ops>
struct Operators {
  static void register_in(torch::Library& library) { (UnboxedKernel<Ops>::register_in(library), ...); }
};

}  // namespace apex::amp::detail
