#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/multi_tensor.h"
#include "kernels/plan/plan.h"

#include <c10/core/ScalarType.h>

#include <type_traits>

// The driver for CPU tensors: runs rules, compiled for several instruction sets (isa.h), over blocks of values. Each pass is
// one parallel region over the chunks of the group. Any number of threads and any instruction set give the same bits.
namespace apex::kernels::cpu {

// Lists: in, out. Returns whether an input is not finite.
bool scale(const plan::Group& group, double factor);

// Lists: in. Returns whether an input is not finite.
bool has_nonfinite(const plan::Group& group);

// Lists: x, y, out. Returns whether a checked input is not finite.
bool axpby(const plan::Group& group, double a, double b, CheckArg check);

// Lists: from, to.
void copy(const plan::Group& group);

// Lists: in. A float64 tensor of `count` values by tensor index: the sum of (value * factor)^2, or the largest |value|, for the
// tensors of the group, 0 for others.
at::Tensor sums_of_squares(const plan::Group& group, size_t count, double factor);
at::Tensor max_magnitudes(const plan::Group& group, size_t count);

// rules::root_of_sum of each value.
at::Tensor roots_of(const at::Tensor& sums);

// The sum in the fixed order of rules/rule.h.
double ordered_sum(c10::ArrayRef<double> values);

// The table of the current instruction set.
const KernelTable& current_kernels();

// The prefetch distances that are fastest on this machine. `in_place`: the written list is the first list.
Ahead fetched_ahead(bool in_place);

// The conversion of `dtype` to Real, and back. nullptr for Real itself.
template <class Real>
Reader<Real> reader(at::ScalarType dtype);
template <class Real>
Writer<Real> writer(at::ScalarType dtype);

// The storage of `dtype`, for rules that compute in float32.
Storage storage_of(at::ScalarType dtype);

// The kernels of a rule for the current instruction set. float64 has portable kernels only.
template <class Rule>
const Slot<Rule>& kernels_of() {
  if constexpr (std::is_same_v<typename Rule::Real, double>) {
    return kDoubleKernels;
  } else {
    return current_kernels().rules;
  }
}

}  // namespace apex::kernels::cpu
