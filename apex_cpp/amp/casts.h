#pragma once

#include <apex_cpp/amp/casts/cast_plan.h>
#include <apex_cpp/amp/casts/thread_casts.h>

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace apex::amp {

/// Runs an operator in 16 bits, in FP32, or in the widest type of its arguments wherever O1 or O4 casts: built-in operators
/// ("aten::mish", "aten::pow.Tensor_Scalar") and custom ones ("mylib::foo") alike. Without an overload, all overloads of that
/// name but those that write to `out`.
///
/// Process-wide, before or after `initialize`, from any thread; the last registration of an operator counts. An operator of the
/// built-in lists is first cast as these say, then as registered: `aten::mm` registered as a float function runs in FP32 on
/// values rounded to 16 bits (REG-06). Casts of weights to 16 bits go through the cache (REG-03).
/// A custom operator's first registration should come before other threads call that operator.
/// Errors: ValueError for an operator that LibTorch does not know (REG-02). Apex: `amp.register_half_function(module, name)`.
void register_half_function(const std::string& op);
void register_float_function(const std::string& op);
/// A mix of 16 bits and FP32 runs in FP32; any other mix of types is left to PyTorch's own promotion, where Apex raises
/// NotImplementedError (REG-04).
void register_promote_function(const std::string& op);
/// Takes a registration back; nothing happens if there was none. Errors: as above.
void unregister_function(const std::string& op);

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

/// Switches casts off on the calling thread for its lifetime; guards may nest, and end by exceptions as well. Without O1 or O4
/// it does nothing. What a torch::autograd::Function that was applied within it computes again in backward is not cast either.
/// As in Apex (SL-20), the errors for in-place functions and banned functions on 16-bit tensors remain.
class disable_casts {
 public:
  disable_casts();
  ~disable_casts();
  disable_casts(const disable_casts&) = delete;
  disable_casts& operator=(const disable_casts&) = delete;

 private:
  bool previous_;
  uint64_t first_node_;
};

/// Switches casts on for the calling thread for its lifetime: the counterpart of `disable_casts`, also within one. Guards nest,
/// and restore what was before, also where they end by exceptions.
///
/// Casts are on for the thread that called `initialize`; on any other from the first forward pass of a handle there, by the
/// rules of the newest `initialize`, until `reset`. What runs on a thread before any handle does, such as a loss, or a forward
/// pass of the original model, is not cast without this guard (Apex patches the whole process); in a parallel region of OpenMP
/// or LibTorch nothing outside of a handle's forward is. It takes the rules of the thread's own `initialize`; where there was
/// none, those of the newest one in the process, at O2, O3 and O5 too, for the original model. Before `initialize`, and after
/// one at O0, it does nothing. Within a backward pass it holds for the operators that the program calls while it lives; threads
/// of autograd are left as they were. No synchronisation.
///
/// While casts are on, a thread's TorchScript modules run as they are written, without the executor's optimisations, whose
/// derivatives know nothing of casts. A module that was optimised before, because it ran with gradients before `initialize`,
/// fails in its backward pass at O1 and O4 with the interpreter's error: load or compile it again.
///
/// ```
/// std::thread evaluation([&] {
///   amp::enable_casts on;
///   const torch::NoGradGuard no_grad;
///   accuracy = evaluate(model, data);
/// });
/// ```
class enable_casts {
 public:
  enable_casts();

 private:
  detail::CastsAs casts_;
};

}  // namespace apex::amp
