#pragma once

#include "kernels/xentropy/calls.h"

// The driver for CPU tensors: rows are spread over threads.
namespace apex::kernels::xentropy::cpu {

void forward(const ForwardCall& call);
void backward(const BackwardCall& call);

}  // namespace apex::kernels::xentropy::cpu
