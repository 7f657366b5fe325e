#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/updates.h"

// Launches of the kernel bodies on the current device, with raw pointers and plain values only.
namespace apex::kernels::cuda {

// One launch over the table, which is in the current device's memory. For each Op of elementwise.h and updates.h.
template <class Op>
cudaError_t launch_updates(const Table& table, const Op& op, cudaStream_t stream);

// The same for each Op of norms.h.
template <class Op>
cudaError_t launch_sums(const Table& table, const Op& op, cudaStream_t stream);

cudaError_t launch_update_scale(const rules::ScaleUpdate& update, const LossScaleAddresses& addresses, cudaStream_t stream);

}  // namespace apex::kernels::cuda
