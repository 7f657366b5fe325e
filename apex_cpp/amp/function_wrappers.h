#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include <apex_cpp/amp/casts/function_arguments.h>

namespace apex::amp {

namespace detail {

/// A callable whose tensor arguments are cast where O1 or O4 is in force at the call (REG-01).
template <class Function>
class CastFunction {
 public:
  CastFunction(opt_levels::CastPolicy policy, Function function) : policy_(policy), function_(std::move(function)) {}

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return call(function_, std::forward<Args>(args)...);
  }
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    return call(function_, std::forward<Args>(args)...);
  }

 private:
  template <class Callee, class... Args>
  decltype(auto) call(Callee& callee, Args&&... args) const {
    FunctionArgumentTypes types;
    (look_at_argument(types, args), ...);
    const auto plan = plan_for_function(policy_, types);
    if (!plan) return std::invoke(callee, std::forward<Args>(args)...);
    return std::invoke(callee, cast_argument(*plan, std::forward<Args>(args))...);
  }

  opt_levels::CastPolicy policy_;
  Function function_;
};

}  // namespace detail

/// Wraps any callable so that, where O1 or O4 is in force on the calling thread, the floating tensors among its arguments (also
/// in vectors, arrays, tuples and optionals that hold nothing else) arrive in 16 bits; weights come from the cache. Elsewhere
/// it is called as it is. Inside, operators are cast as ever. Apex: `@amp.half_function`.
template <class Function>
auto half_function(Function&& function) {
  return detail::CastFunction<std::decay_t<Function>>(opt_levels::CastPolicy::half, std::forward<Function>(function));
}

/// The same in FP32. Apex: `@amp.float_function`.
template <class Function>
auto float_function(Function&& function) {
  return detail::CastFunction<std::decay_t<Function>>(opt_levels::CastPolicy::float32, std::forward<Function>(function));
}

/// The same in FP32 if the arguments mix 16 bits and FP32; any other mix of types is handed over as it is, where Apex raises
/// NotImplementedError (REG-04). Apex: `@amp.promote_function`.
template <class Function>
auto promote_function(Function&& function) {
  return detail::CastFunction<std::decay_t<Function>>(opt_levels::CastPolicy::promote, std::forward<Function>(function));
}

}  // namespace apex::amp
