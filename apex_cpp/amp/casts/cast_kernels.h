#pragma once

#include <apex_cpp/amp/casts/cast_plan.h>
#include <apex_cpp/amp/casts/thread_casts.h>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>
#include <type_traits>
#include <vector>

namespace apex::amp::detail {

/// One argument of an operator, by its type in the operator's schema: `look` adds its types to the plan's input, `get` returns
/// the argument cast by the plan. The primary template is for arguments without tensors.
template <class T>
class ArgumentCast {
 public:
  static void look(ArgumentTypes&, const T&) {}
  ArgumentCast(const CastPlan&, T argument) : argument_(static_cast<T&&>(argument)) {}
  T&& get() { return static_cast<T&&>(argument_); }

 private:
  T argument_;
};

/// An output tensor keeps its type: a cast would lose the result.
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

/// The plan for a call with these arguments, `Args` being their types in the operator's schema.
template <class... Args>
CastPlan plan_for(const CallPolicies& policies, const std::remove_reference_t<Args>&... args) {
  ArgumentTypes types;
  types.rules = policies.rules();
  (ArgumentCast<Args>::look(types, args), ...);
  return policies.plan(types);
}

/// How an operator is computed in FP8, if `exists`; `Float8Form<Op>::call(rules, arguments...)` returns an undefined tensor if
/// it is not.
template <class Op, class Enabled = void>
struct Float8Form {
  static constexpr bool exists = false;
};

/// The engine's kernel for one ATen operator, `Op` being its struct in `at::_ops`: casts the arguments by the calling thread's
/// rules, then calls the next kernel through `Below` with casts off.
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
    return next(policies, keys - plan.off_inside(), ArgumentCast<Args>(plan, static_cast<Args&&>(args)).get()...);
  }

  static void register_in(torch::Library& library) {
    slot = &operator_slot(Op::name, Op::overload_name);
    library.impl(slot->name.c_str(), TORCH_FN(call));
  }

 private:
  template <class... Cast>
  static Result next(const CallPolicies& policies, c10::DispatchKeySet keys, Cast&&... args) {
    const bool in_float8 = policies.round_to_float8();
    if constexpr (Float8Form<Op>::exists) {
      at::Tensor product = in_float8 ? Float8Form<Op>::call(*policies.rules(), args...) : at::Tensor();
      if (product.defined()) return product;
    }
    const Float8Pause pause(in_float8);
    return Below::redispatch(keys, static_cast<Cast&&>(args)...);
  }
};

/// A list of operators with such kernels.
template <class... Ops>
struct Operators {
  static void register_in(torch::Library& library) { (UnboxedKernel<Ops>::register_in(library), ...); }
};

/// The kernel of batch norm and instance norm. Both write to their running statistics, which their schemas do not say: if these
/// were cast, the kernel copies the results back.
template <class Op, class Schema = typename Op::schema>
struct StatisticsKernel;

template <class Op>
struct StatisticsKernel<Op, at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                                       const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, bool, double, double,
                                       bool)> {
  using Optional = const std::optional<at::Tensor>&;
  static inline OperatorSlot* slot = nullptr;

  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& input, Optional weight, Optional bias, Optional mean,
                         Optional var, bool of_batch, double momentum, double eps, bool cudnn_enabled) {
    keys = keys & kBelowCastKey;
    const CallPolicies policies(*slot);
    if (!policies.any()) return Op::redispatch(keys, input, weight, bias, mean, var, of_batch, momentum, eps, cudnn_enabled);
    const CastPlan plan =
        plan_for<const at::Tensor&, Optional, Optional, Optional, Optional>(policies, input, weight, bias, mean, var);
    const c10::impl::ExcludeDispatchKeyGuard off(plan.off_inside());
    const ArgumentCast<const at::Tensor&> x(plan, input);
    const ArgumentCast<Optional> w(plan, weight), b(plan, bias), m(plan, mean), v(plan, var);
    at::Tensor result = Op::redispatch(keys - plan.off_inside(), x.get(), w.get(), b.get(), m.get(), v.get(), of_batch,
                                       momentum, eps, cudnn_enabled);
    if (of_batch) write_back(m.get(), mean), write_back(v.get(), var);
    return result;
  }

  static void register_in(torch::Library& library) {
    slot = &operator_slot(Op::name, Op::overload_name);
    library.impl(slot->name.c_str(), TORCH_FN(call));
  }

 private:
  static void write_back(Optional written, Optional statistics) {
    if (!statistics || written->is_same(*statistics)) return;
    const at::NoGradGuard no_grad;
    statistics->copy_(*written);
  }
};

}  // namespace apex::amp::detail
