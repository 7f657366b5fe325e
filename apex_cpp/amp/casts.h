#pragma once

#include <apex_cpp/amp/casts/cast_plan.h>
#include <apex_cpp/amp/casts/thread_casts.h>

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace apex::amp {

/// Runs an operator in 16 bits, in FP32, or in the widest type of its arguments wherever O1 or O4 casts. Built-in operators
/// ("aten::mish", "aten::pow.Tensor_Scalar") and custom operators ("mylib::foo") work alike. A name without an overload stands
/// for all overloads of that name except those that write to `out`.
///
/// Registrations hold for the whole process. They may come before or after `initialize` and from any thread; the last
/// registration of an operator wins. An operator of the built-in lists is cast by the lists first, then as registered:
/// `aten::mm` registered as a float function runs in FP32 on values rounded to 16 bits (REG-06). Casts of weights to 16 bits go
/// through the cache (REG-03). Register a custom operator for the first time before other threads call it.
/// Errors: ValueError for an operator that LibTorch does not know (REG-02). Apex: `amp.register_half_function(module, name)`.
void register_half_function(const std::string& op);
void register_float_function(const std::string& op);
/// A mix of 16 bits and FP32 runs in FP32. PyTorch's own promotion handles any other mix of types; Apex raises
/// NotImplementedError there (REG-04).
void register_promote_function(const std::string& op);
/// Removes a registration; no-op if there is none. Errors: as above.
void unregister_function(const std::string& op);

namespace detail {

/// What a wrapped callable returns for `Result`. A reference, which may be to an argument, becomes a value: the cast of an
/// argument ends with the call.
template <class Result>
using ValueOf = std::conditional_t<std::is_reference_v<Result> && std::is_copy_constructible_v<std::decay_t<Result>>,
                                   std::decay_t<Result>, Result>;

/// A callable whose tensor arguments are cast if O1 or O4 is in force when it is called (REG-01).
template <class Function>
class CastFunction {
 public:
  template <class Callee, class... Args>
  using Result = ValueOf<std::invoke_result_t<Callee, Args...>>;

  CastFunction(opt_levels::CastPolicy policy, Function function) : policy_(policy), function_(std::move(function)) {}

  template <class... Args>
  auto operator()(Args&&... args) -> Result<Function&, Args...> {
    return call(function_, std::forward<Args>(args)...);
  }
  template <class... Args>
  auto operator()(Args&&... args) const -> Result<const Function&, Args...> {
    return call(function_, std::forward<Args>(args)...);
  }

 private:
  template <class Callee, class... Args>
  auto call(Callee& callee, Args&&... args) const -> Result<Callee&, Args...> {
    FunctionArgumentTypes types;
    (look_at_argument(types, args), ...);
    const auto plan = plan_for_function(policy_, types);
    if (!plan) return std::invoke(callee, std::forward<Args>(args)...);
    static_assert(
        std::is_invocable_v<Callee&, decltype(cast_argument(*plan, std::forward<Args>(args)))...>,
        "A function that amp casts gets casts of its tensors, to which a torch::Tensor& does not bind: take tensors by "
        "value or const reference, and return the result.");
    return std::invoke(callee, cast_argument(*plan, std::forward<Args>(args))...);
  }

  opt_levels::CastPolicy policy_;
  Function function_;
};

}  // namespace detail

/// Wraps any callable: where O1 or O4 is in force on the calling thread, its floating-point tensor arguments arrive in 16 bits.
/// This includes tensors in vectors, arrays, tuples and optionals that hold floating-point tensors only. Casts of weights come
/// from the cache. Elsewhere the callable gets its arguments unchanged. Operators that the callable calls are cast as usual.
/// Apex: `@amp.half_function`.
template <class Function>
auto half_function(Function&& function) {
  return detail::CastFunction<std::decay_t<Function>>(opt_levels::CastPolicy::half, std::forward<Function>(function));
}

/// As `half_function`, in FP32. Apex: `@amp.float_function`.
template <class Function>
auto float_function(Function&& function) {
  return detail::CastFunction<std::decay_t<Function>>(opt_levels::CastPolicy::float32, std::forward<Function>(function));
}

/// As `half_function`, in FP32 if the arguments mix 16 bits and FP32. Any other mix of types is passed unchanged; Apex raises
/// NotImplementedError there (REG-04). Apex: `@amp.promote_function`.
template <class Function>
auto promote_function(Function&& function) {
  return detail::CastFunction<std::decay_t<Function>>(opt_levels::CastPolicy::promote, std::forward<Function>(function));
}

/// Switches casts off on the calling thread for its lifetime. Guards may nest, and an exception may end them. Does nothing
/// without O1 or O4, except at O6, where it switches FP8 off: products stay in BF16. If a torch::autograd::Function
/// that was applied within the guard computes its forward pass again during backward, that pass is not cast either. As in
/// Apex (SL-20), in-place functions and banned functions still throw for 16-bit tensors.
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

/// Switches casts on for the calling thread for its lifetime, also inside `disable_casts`. Guards may nest, and restore the
/// earlier state even if an exception ends them.
///
/// Casts are on for the thread that called `initialize`. On any other thread they are on from the first forward pass of a
/// handle there, by the rules of the newest `initialize`, until `reset`. Without this guard, nothing is cast that a thread runs
/// before any handle, such as a loss or a forward pass of the original model; Apex patches the whole process. In a parallel
/// region of OpenMP or LibTorch only a handle's forward is cast. The guard takes the rules of the thread's own `initialize`, or
/// else those of the newest `initialize` in the process; at O2, O3, O5 and O6 too, for the original model. Before `initialize`,
/// and after an `initialize` at O0, it does nothing. Within a backward pass it holds for the operators that the program calls
/// during its lifetime; autograd's threads do not change. The end of a `c10::InferenceMode` guard restores what was on before
/// it. No synchronisation.
///
/// While casts are on, TorchScript modules on the thread run without the executor's optimisations, whose derivatives do not
/// account for casts. A module that was optimised before, because it ran with gradients before `initialize`, fails in its
/// backward pass at O1 and O4 with the interpreter's error: load or compile it again.
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
