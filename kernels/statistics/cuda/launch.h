#pragma once

#include <cuda_runtime_api.h>

#include "kernels/statistics/bins.h"

// Launches of the passes on the current device, with raw pointers and plain values only. Stored is float, double, rules::Half
// or rules::BFloat16.
namespace apex::kernels::statistics::cuda {

template <class Stored>
cudaError_t launch(const Job& job, cudaStream_t stream);

}  // namespace apex::kernels::statistics::cuda
