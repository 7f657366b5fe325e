#pragma once

#include "kernels/cuda/control.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/multi_tensor_cuda.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/updates.h"

// What the driver asks of the device: run.cpp with CUDA, stub.cpp without. Tests have blocks that run on the host instead.
namespace apex::kernels::cuda {

// One launch over the call's tensors on the current stream of their device. For each Op of elementwise.h and updates.h.
template <class Op>
void run_update(const Call& call, const Op& op);

// The same for each Op of norms.h. Returns the table that the sums are left in, until the next launch over the same tensors on
// the same stream.
template <class Op>
Table run_sum(const Call& call, const Op& op);

void run_update_scale(c10::Device device, const rules::ScaleUpdate& rule, const LossScaleAddresses& addresses);

}  // namespace apex::kernels::cuda
