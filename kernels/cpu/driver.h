#pragma once

#include "kernels/multi_tensor.h"
#include "kernels/plan/plan.h"

// The portable driver for CPU tensors: scalar rules over blocks of values, which compilers turn into vector code. One parallel
// region per pass, over the chunks of the group. Any number of threads gives the same bits.
namespace apex::kernels::cpu {

// Lists: in, out. Returns whether an input is not finite.
bool scale(const plan::Group& group, double factor);

// Lists: x, y, out. Returns whether a checked input is not finite.
bool axpby(const plan::Group& group, double a, double b, CheckArg check);

// Lists: from, to.
void copy(const plan::Group& group);

// Lists: in. A float64 tensor of `count` values: the sum of squares of each of the group's rows at the row's index, 0
// elsewhere.
at::Tensor sums_of_squares(const plan::Group& group, size_t count);

// The sum in the fixed order of rules/l2norm.h.
double ordered_sum(c10::ArrayRef<double> values);

}  // namespace apex::kernels::cpu
