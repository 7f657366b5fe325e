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

/// A list takes part only if all of its elements are floating tensors (O1-04).
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

/// What the floating tensors among a call's arguments are, as far as policies ask.
struct ArgumentTypes {
  FloatTypes all;                      // wherever they stand
  FloatTypes in_lists;                 // those in lists
  std::optional<FloatTypes> self;      // of the first tensor argument
  FloatTypes later;                    // of those behind it
  bool kept = false;                   // a parameter of a module that the program wants in FP32 is among them
  bool on_cpu = true;                  // all of them
  bool float64_requires_grad = false;  // one of those in FP64 does
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

/// What happens to the arguments of one call: up to two casts after one another, the list's and the user's (REG-06), and
/// no casts within the operator. As constructed: nothing.
class CastPlan {
 public:
  CastPlan() = default;
  CastPlan(const CastRules* rules, const OperatorSlot* slot, const ThreadCasts* thread)
      : rules_(rules), slot_(slot), thread_(thread), off_inside_(off_inside_by(*rules)) {}

  /// Adds what `policy` asks for a call with these arguments. Errors: NotImplementedError for what Apex refuses.
  void apply(CastPolicy policy, const ArgumentTypes& arguments);
  /// The same where only what LibTorch would refuse is cast.
  void apply_to_mix(CastPolicy policy, const ArgumentTypes& arguments);
  /// 16-bit arguments become FP32, as the program wants them at any level.
  void keep_float32() { add_step(kLowTypes, at::kFloat, false); }

  /// A plan within `disable_casts`: nothing is cast, nor any operator that the called one is made of.
  static CastPlan disabled() {
    CastPlan plan;
    plan.off_inside_ = c10::DispatchKeySet(kCastKey);
    return plan;
  }

  /// False: the call goes on as if the engine had no kernel for the operator.
  bool takes_over() const { return slot_ != nullptr; }
  /// The keys that are off inside of the operator.
  c10::DispatchKeySet off_inside() const { return off_inside_; }
  bool has_steps() const { return num_steps_ > 0; }
  /// Whether `cast` may answer another tensor than it is given.
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
  /// Tensors of one of `from` become `to`; `cached`: weights through the cache.
  void add_step(FloatTypes from, c10::ScalarType to, bool cached);
  /// At O2, O3 and O5 the engine finds no mix of types inside; but what `float32_functions` names runs in FP32 there, too.
  static c10::DispatchKeySet off_inside_by(const CastRules& rules) {
    return rules.mode() == CastRules::Mode::match ? kOffInside - c10::DispatchKeySet(kCastKey) : kOffInside;
  }
  FloatTypes after_steps(FloatTypes types) const;
  at::Tensor cast_once(const at::Tensor& tensor, const Step& step) const;
  /// Errors: RuntimeError naming a parameter of which `tensor` is a view from before its dtype was changed.
  void check_not_stale(const at::Tensor& tensor) const;
  void to_float32();
  void promote(FloatTypes types);
  void widen(FloatTypes types);
  void follow_self(const ArgumentTypes& arguments);
  void follow(FloatTypes leaders, const ArgumentTypes& arguments);

  const CastRules* rules_ = nullptr;
  const OperatorSlot* slot_ = nullptr;
  const ThreadCasts* thread_ = nullptr;
  FloatTypes from_;  // what any step casts
  c10::DispatchKeySet off_inside_;
  Step steps_[2] = {};
  int num_steps_ = 0;
};

/// The policies that hold for one call of an operator on this thread.
class CallPolicies {
 public:
  explicit CallPolicies(const OperatorSlot& slot);

  /// False: the operator is as if the engine had no kernel for it.
  bool any() const { return listed_ != CastPolicy::none || user_ != CastPolicy::none || keeps_; }
  const CastRules* rules() const { return rules_; }
  /// Errors: NotImplementedError for an in-place function on a 16-bit tensor, or a banned function.
  CastPlan plan(const ArgumentTypes& arguments) const;

 private:
  /// What the lists leave in FP32 and FP64 (README, "What is cast"): the program's own FP64 data outside of a handle's forward,
  /// and CPU tensors beside a model on a GPU.
  bool stays_wide(const ArgumentTypes& arguments) const;

  const OperatorSlot& slot_;
  const ThreadCasts& thread_;
  const CastRules* rules_;
  bool only_mixes_;
  bool disabled_ = false;
  bool in_forward_ = false;
  bool keeps_ = false;  // the operator is to run in FP32, or arguments have to say so
  bool keeps_function_ = false;
  CastPolicy listed_ = CastPolicy::none;
  CastPolicy user_ = CastPolicy::none;
};

/// The same for a callable that the user wrapped: one policy, and only where casts are on for O1 or O4. `name` is what is
/// printed.
CastPlan plan_for_call(CastPolicy policy, const OperatorSlot& name, const ArgumentTypes& arguments);

}  // namespace apex::amp::detail

// The arguments of a wrapped callable: tensors, and (nested) containers made of floating tensors only (O1-04).
namespace apex::amp::detail {

class CastPlan;

/// What the floating tensors among a wrapped callable's arguments are.
struct FunctionArgumentTypes {
  FloatTypes all;
  std::optional<FloatTypes> first;  // of the first tensor

  void add(const at::Tensor& tensor) {
    if (!first) first = float_type_of(tensor);
    all |= float_type_of(tensor);
  }
};

/// What is to be done with such arguments, or null where the callable is called as it is.
std::shared_ptr<const CastPlan> plan_for_function(opt_levels::CastPolicy policy, const FunctionArgumentTypes& arguments);
at::Tensor cast_by(const CastPlan& plan, const at::Tensor& tensor);

/// Whether there is nothing but floating tensors in `value`, and at least the place for one.
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

/// The argument with its tensors as the plan wants them; one that holds none is forwarded.
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
