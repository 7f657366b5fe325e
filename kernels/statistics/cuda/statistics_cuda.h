#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/statistics/bins.h"

namespace apex::kernels::statistics::cuda {

// Enqueues the job on the current stream of the device, for tensors of that dtype.
void run(at::ScalarType dtype, c10::Device device, const Job& job);

}  // namespace apex::kernels::statistics::cuda
