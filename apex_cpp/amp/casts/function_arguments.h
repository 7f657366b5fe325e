#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <apex_cpp/amp/casts/float_types.h>
#include <apex_cpp/amp/tensors/map_tensors.h>

#include "opt_levels/cast_lists.h"

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
