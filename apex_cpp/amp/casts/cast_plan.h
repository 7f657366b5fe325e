#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/map_tensors.h>
#include "opt_levels/cast_lists.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace apex::amp::detail {

/// The types of a list; empty unless all elements are floating-point tensors (O1-04).
template <class List>
FloatTypes float_types_of_list(const List& list) {
  FloatTypes types;
  for (const at::Tensor& element : list) {
    const FloatTypes type = float_type_of(element);
    if (type.empty()) return {};
    types |= type;
  }
  return types;
}

/// The types and places of the floating-point tensors among a call's arguments.
struct ArgumentTypes {
  FloatTypes all;                      // of all tensors
  FloatTypes in_lists;                 // of tensors in lists
  std::optional<FloatTypes> self;      // of the first tensor argument
  FloatTypes later;                    // of the tensors after it
  bool kept = false;                   // one is a parameter of a module in `float32_modules`
  bool on_cpu = true;                  // all tensors are
  bool float64_requires_grad = false;  // an FP64 tensor requires grad
  const CastRules* rules = nullptr;

  void add(const at::Tensor& tensor) {
    const FloatTypes type = float_type_of(tensor);
    if (self) {
      later |= type;
    } else {
      self = type;
    }
    all |= type;
    note(tensor, type);
    kept = kept || (rules && rules->keeps_float32(tensor));
  }
  template <class List>
  void add_list(const List& list) {
    const FloatTypes types = float_types_of_list(list);
    in_lists |= types;
    later |= types;
    all |= types;
    if (types.empty() || !rules) return;
    for (const at::Tensor& element : list) {
      note(element, types);
      kept = kept || rules->keeps_float32(element);
    }
  }

 private:
  void note(const at::Tensor& tensor, FloatTypes type) {
    on_cpu = on_cpu && (type.empty() || tensor.is_cpu());
    float64_requires_grad = float64_requires_grad || (type.has(at::kDouble) && tensor.requires_grad());
  }
};

/// How one call's arguments are cast: up to two casts in a row, the list's and the user's (REG-06), and which keys are off
/// inside the operator. A default-constructed plan does nothing.
class CastPlan {
 public:
  CastPlan() = default;
  CastPlan(const CastRules* rules, const OperatorSlot* slot, const ThreadCasts* thread)
      : rules_(rules), slot_(slot), thread_(thread), off_inside_(off_inside_by(*rules)) {}

  /// Adds the casts of `policy` for these arguments. Errors: NotImplementedError where Apex throws it.
  void apply(CastPolicy policy, const ArgumentTypes& arguments);
  /// As `apply`, but casts only mixes of types that LibTorch would refuse.
  void apply_to_mix(CastPolicy policy, const ArgumentTypes& arguments);
  /// Casts 16-bit arguments to FP32, for `float32_modules` and `float32_functions`.
  void keep_float32() { add_step(kLowTypes, at::kFloat, false); }

  /// The plan inside `disable_casts`: casts neither the arguments nor the operators that the operator calls.
  static CastPlan disabled() {
    CastPlan plan;
    plan.off_inside_ = c10::DispatchKeySet(kCastKey);
    return plan;
  }

  /// False if the call bypasses the engine.
  bool takes_over() const { return slot_ != nullptr; }
  /// The dispatch keys that are excluded inside the operator.
  c10::DispatchKeySet off_inside() const { return off_inside_; }
  bool has_steps() const { return num_steps_ > 0; }
  /// Whether `cast` may return another tensor than its argument.
  bool casts(const at::Tensor& tensor) const { return !(float_type_of(tensor).without(from_) == float_type_of(tensor)); }
  template <class List>
  bool casts_list(const List& list) const {
    const FloatTypes types = float_types_of_list(list);
    return !(types.without(from_) == types);
  }
  /// The tensor after all steps, recorded by autograd.
  at::Tensor cast(const at::Tensor& tensor) const;

 private:
  struct Step {
    FloatTypes from;
    c10::ScalarType to;
    bool cached;
  };
  /// Casts tensors of the types `from` to `to`; `cached`: weights through the cache.
  void add_step(FloatTypes from, c10::ScalarType to, bool cached);
  /// At O2, O3 and O5 the cast key stays on inside: operators in `float32_functions` run in FP32 there too.
  static c10::DispatchKeySet off_inside_by(const CastRules& rules) {
    return rules.mode() == CastRules::Mode::match ? kOffInside - c10::DispatchKeySet(kCastKey) : kOffInside;
  }
  FloatTypes after_steps(FloatTypes types) const;
  at::Tensor cast_once(const at::Tensor& tensor, const Step& step) const;
  /// Errors: RuntimeError that names the parameter, if `tensor` is a view made before the parameter changed its dtype.
  void check_not_stale(const at::Tensor& tensor) const;
  void to_float32();
  void promote(FloatTypes types);
  void widen(FloatTypes types);
  void follow_self(const ArgumentTypes& arguments);
  void follow(FloatTypes leaders, const ArgumentTypes& arguments);

  const CastRules* rules_ = nullptr;
  const OperatorSlot* slot_ = nullptr;
  const ThreadCasts* thread_ = nullptr;
  FloatTypes from_;  // the types that any step casts
  c10::DispatchKeySet off_inside_;
  Step steps_[2] = {};
  int num_steps_ = 0;
};

/// The policies for one call of an operator on this thread.
class CallPolicies {
 public:
  explicit CallPolicies(const OperatorSlot& slot);

  /// False if the call bypasses the engine.
  bool any() const { return listed_ != CastPolicy::none || user_ != CastPolicy::none || keeps_; }
  const CastRules* rules() const { return rules_; }
  /// Whether products of this call are rounded to FP8: of the operator itself if it has a form for it. The operators that it
  /// calls are not.
  bool round_to_float8() const { return rounds_to_float8_; }
  /// Errors: NotImplementedError for an in-place function on a 16-bit tensor, or a banned function.
  CastPlan plan(const ArgumentTypes& arguments) const;

 private:
  /// True for arguments that the lists do not cast from FP32 and FP64 (README, "What is cast"): the program's own FP64 data
  /// outside of a handle's forward, and CPU tensors if the model is on a GPU.
  bool stays_wide(const ArgumentTypes& arguments) const;

  const OperatorSlot& slot_;
  const ThreadCasts& thread_;
  const CastRules* rules_;
  bool only_mixes_;
  bool disabled_ = false;
  bool in_forward_ = false;
  bool keeps_ = false;  // the operator, or modules whose parameters it may use, are kept in FP32
  bool keeps_function_ = false;
  bool rounds_to_float8_ = false;
  CastPolicy listed_ = CastPolicy::none;
  CastPolicy user_ = CastPolicy::none;
};

/// The plan for a wrapped callable: one policy, applied only while the lists of O1 or O4 are on. `name` is printed with its
/// casts.
CastPlan plan_for_call(CastPolicy policy, const OperatorSlot& name, const ArgumentTypes& arguments);

// Arguments of wrapped callables: tensors, and (nested) containers of floating-point tensors only (O1-04).

class CastPlan;

/// Whether the tensor is a parameter of a module in `float32_modules` of the rules in force.
bool is_kept_in_float32(const at::Tensor& tensor);

/// The types of the floating-point tensors among a wrapped callable's arguments.
struct FunctionArgumentTypes {
  FloatTypes all;
  std::optional<FloatTypes> first;  // of the first tensor
  bool kept = false;                // one is a parameter of a module in `float32_modules`

  void add(const at::Tensor& tensor) {
    if (!first) first = float_type_of(tensor);
    all |= float_type_of(tensor);
    kept = kept || is_kept_in_float32(tensor);
  }
};

/// The plan for such arguments; null if they are passed unchanged.
std::shared_ptr<const CastPlan> plan_for_function(opt_levels::CastPolicy policy, const FunctionArgumentTypes& arguments);
at::Tensor cast_by(const CastPlan& plan, const at::Tensor& tensor);

/// Whether `value` holds floating-point tensors only, and can hold one.
template <class T>
bool only_floating(const T& value) {
  const auto every = [](const auto&... element) { return (only_floating(element) && ...); };
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return !float_type_of(value).empty();
  } else if constexpr (!kHoldsTensors<T>) {
    return false;
  } else if constexpr (kIsOptional<T>) {
    return value && only_floating(*value);
  } else if constexpr (kIsTuple<T>) {
    return std::apply(every, value);
  } else if constexpr (kIsVariant<T>) {
    return std::visit(every, value);
  } else {
    for (const auto& element : value) {
      if (!only_floating(element)) return false;
    }
    return true;
  }
}

template <class T>
void look_at_argument(FunctionArgumentTypes& types, const T& argument) {
  if constexpr (kHoldsTensors<T>) {
    if (!only_floating(argument)) return;
    map_tensors(argument, [&](const at::Tensor& tensor) {
      types.add(tensor);
      return tensor;
    });
  }
}

/// The argument with its tensors cast by the plan; an argument without tensors is forwarded.
template <class T>
decltype(auto) cast_argument(const CastPlan& plan, T&& argument) {
  if constexpr (kHoldsTensors<T>) {
    const bool casts = only_floating(argument);
    return map_tensors(std::as_const(argument),
                       [&](const at::Tensor& tensor) { return casts ? cast_by(plan, tensor) : tensor; });
  } else {
    return std::forward<T>(argument);
  }
}

}  // namespace apex::amp::detail
