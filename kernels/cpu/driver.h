#pragma once

#include "kernels/multi_tensor.h"
#include "kernels/plan/plan.h"

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
