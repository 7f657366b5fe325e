#pragma once

#include <ATen/core/grad_mode.h>

#include <apex_cpp/amp/casts/unboxed_kernel.h>

namespace apex::amp::detail {

/// The kernel of batch norm and of instance norm, which write to their running statistics, though their schemas do not say so:
/// where these are cast, what was written to the copies goes back.
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
