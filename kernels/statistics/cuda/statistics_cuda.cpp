#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/statistics/cuda/launch.h"
#include "kernels/statistics/statistics.h"

namespace apex::kernels::statistics::cuda {

void run(at::ScalarType dtype, c10::Device device, const Job& job) {
  const c10::cuda::CUDAGuard guard(device);
  with_dtype(dtype, [&](auto stored) { C10_CUDA_CHECK(launch<decltype(stored)>(job, c10::cuda::getCurrentCUDAStream())); });
}

}  // namespace apex::kernels::statistics::cuda
