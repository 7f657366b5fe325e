#pragma once

#include "kernels/xentropy/xentropy.h"

// The driver for CUDA tensors: one launch per pass, on the current stream.
namespace apex::kernels::xentropy::cuda {

void forward(const ForwardCall& call);
void backward(const BackwardCall& call);

}  // namespace apex::kernels::xentropy::cuda
