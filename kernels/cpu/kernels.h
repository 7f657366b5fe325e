#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/multi_tensor.h"
#include "kernels/optimizers.h"
#include "kernels/plan/plan.h"

#include <c10/core/ScalarType.h>

#include <type_traits>

// The driver for CPU tensors: each rule compiled for several instruction sets (isa.h), run over blocks of values. One parallel
// region per pass, over the chunks of the group. Any number of threads and any instruction set give the same bits.
namespace apex::kernels::cpu {

// Lists: in, out. Returns whether an input is not finite.
bool scale(const plan::Group& group, double factor);

// Lists: in. Returns whether an input is not finite.
bool has_nonfinite(const plan::Group& group);

// Lists: x, y, out. Returns whether a checked input is not finite.
bool axpby(const plan::Group& group, double a, double b, CheckArg check);

// Lists: from, to.
void copy(const plan::Group& group);

// Lists: in. A float64 tensor of `count` values: the sum of (value * factor)^2, or the largest |value|, over each of
// the group's rows at the row's index, 0 elsewhere.
at::Tensor sums_of_squares(const plan::Group& group, size_t count, double factor);
at::Tensor max_magnitudes(const plan::Group& group, size_t count);

// rules::root_of_sum of each.
at::Tensor roots_of(const at::Tensor& sums);

// The sum in the fixed order of rules/lanes.h.
double ordered_sum(c10::ArrayRef<double> values);

}  // namespace apex::kernels::cpu

// Kernels for blocks of values, in the instruction set that is in use.
namespace apex::kernels::cpu {

const KernelTable& current_kernels();

// What this machine walks memory fastest with; `in_place`: where the first list is replaced by one that is written.
Ahead fetched_ahead(bool in_place);

// How values of `dtype` become Real, and back. nullptr for Real itself.
template <class Real>
Reader<Real> reader(at::ScalarType dtype);
template <class Real>
Writer<Real> writer(at::ScalarType dtype);

// How a rule that computes in float32 has `dtype` in memory.
Storage storage_of(at::ScalarType dtype);

// The kernels of a rule. Those for float64 are portable ones.
template <class Rule>
const Slot<Rule>& kernels_of() {
  if constexpr (std::is_same_v<typename Rule::Real, double>) {
    return kDoubleKernels;
  } else {
    return current_kernels().rules;
  }
}

}  // namespace apex::kernels::cpu

// Optimizer updates for CPU tensors. Each takes the lists of its namesake in kernels/optimizers.h in their order; with `copies`
// the last one is model_params.
namespace apex::kernels::cpu {

// With momentum the group has momentum_buffers, otherwise not.
void sgd(const plan::Group& group, const SgdControl& control, bool copies);

void adam(const plan::Group& group, const AdamControl& control, bool copies);
void adagrad(const plan::Group& group, const AdagradControl& control, bool copies);

// `norms`: the running norm of each tensor of the call.
void novograd(const plan::Group& group, const NovoGradControl& control, const float* norms, bool copies);

// Writes the norms of the group's tensors at their index of `norms`.
void lamb_stage_1(const plan::Group& group, const LambControl& control, const LambNorms& norms);
void lamb_stage_2(const plan::Group& group, const LambControl& control, const LambNorms& norms, bool copies);

// Norms of each tensor of the call: of its parameter, and of its gradient as it is stored.
void larc(const plan::Group& group, const LarcControl& control, const float* param_norms, const float* grad_norms);

}  // namespace apex::kernels::cpu
