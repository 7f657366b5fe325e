#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include <apex_cpp/amp/casts/cast_plan.h>

namespace apex::amp::detail {

/// One argument of an operator, by the type it has in the operator's schema: `look` adds its types to what the plan is made
/// from, `get` hands over the argument as the plan wants it. The primary template is for whatever holds no tensors.
template <class T>
class ArgumentCast {
 public:
  static void look(ArgumentTypes&, const T&) {}
  ArgumentCast(const CastPlan&, T argument) : argument_(static_cast<T&&>(argument)) {}
  T&& get() { return static_cast<T&&>(argument_); }

 private:
  T argument_;
};

/// A tensor that is written to keeps its type: casting it would lose the result.
template <>
class ArgumentCast<at::Tensor&> {
 public:
  static void look(ArgumentTypes& types, const at::Tensor& argument) { types.add(argument); }
  ArgumentCast(const CastPlan&, at::Tensor& argument) : argument_(argument) {}
  at::Tensor& get() { return argument_; }

 private:
  at::Tensor& argument_;
};

template <>
class ArgumentCast<const at::Tensor&> {
 public:
  static void look(ArgumentTypes& types, const at::Tensor& argument) { types.add(argument); }
  ArgumentCast(const CastPlan& plan, const at::Tensor& argument) : argument_(&argument) {
    if (!plan.casts(argument)) return;
    cast_ = plan.cast(argument);
    argument_ = &cast_;
  }
  const at::Tensor& get() const { return *argument_; }

 private:
  at::Tensor cast_;
  const at::Tensor* argument_;
};

template <>
class ArgumentCast<const std::optional<at::Tensor>&> {
 public:
  using Argument = std::optional<at::Tensor>;
  static void look(ArgumentTypes& types, const Argument& argument) {
    if (argument) types.add(*argument);
  }
  ArgumentCast(const CastPlan& plan, const Argument& argument) : argument_(&argument) {
    if (!argument || !plan.casts(*argument)) return;
    cast_ = plan.cast(*argument);
    argument_ = &cast_;
  }
  const Argument& get() const { return *argument_; }

 private:
  Argument cast_;
  const Argument* argument_;
};

/// `at::TensorList` and `at::ITensorListRef`: a list is cast whole or not at all.
template <class List>
class ListCast {
 public:
  static void look(ArgumentTypes& types, const List& list) { types.add_list(list); }
  ListCast(const CastPlan& plan, const List& list) : list_(list) {
    if (!plan.casts_list(list)) return;
    cast_.reserve(list.size());
    for (const at::Tensor& element : list) cast_.push_back(plan.casts(element) ? plan.cast(element) : element);
    list_ = at::TensorList(cast_);
  }
  const List& get() const { return list_; }

 private:
  std::vector<at::Tensor> cast_;
  List list_;
};

template <>
class ArgumentCast<at::TensorList> : public ListCast<at::TensorList> {
  using ListCast::ListCast;
};
template <>
class ArgumentCast<const at::ITensorListRef&> : public ListCast<at::ITensorListRef> {
  using ListCast::ListCast;
};

}  // namespace apex::amp::detail
