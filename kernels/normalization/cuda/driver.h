#pragma once

#include "kernels/normalization/calls.h"

// The driver for CUDA tensors: one launch forward, up to four backward, on the current stream. The same bits as on a CPU.
namespace apex::kernels::normalization::cuda {

void forward(const ForwardCall& call);
void backward(const BackwardCall& call);

}  // namespace apex::kernels::normalization::cuda
