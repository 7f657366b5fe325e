#pragma once

#include "kernels/normalization/calls.h"

// The driver for CPU tensors. Rows of 16-bit elements are converted to values in a buffer that stays in the caches; rows of the
// arithmetic's own type are worked on where they are. Any number of threads and any instruction set give the same bits.
namespace apex::kernels::normalization::cpu {

void forward(const ForwardCall& call);
void backward(const BackwardCall& call);

}  // namespace apex::kernels::normalization::cpu
