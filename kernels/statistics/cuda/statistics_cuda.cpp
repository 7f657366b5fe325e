#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "kernels/statistics/cuda/launch.h"
#include "kernels/statistics/statistics.h"

namespace apex::kernels::statistics::cuda {
namespace {

// Calls f with a value of the storage type of `dtype`.
template <class F>
void with_dtype(at::ScalarType dtype, const F& f) {
  switch (dtype) {
    case at::kFloat:
      return f(float{});
    case at::kDouble:
      return f(double{});
    case at::kHalf:
      return f(rules::Half{});
    case at::kBFloat16:
      return f(rules::BFloat16{});
    default:
      TORCH_INTERNAL_ASSERT(false, "statistics: no kernels for ", dtype);
  }
}

}  // namespace

void run(at::ScalarType dtype, c10::Device device, const Job& job) {
  const c10::cuda::CUDAGuard guard(device);
  with_dtype(dtype, [&](auto stored) { C10_CUDA_CHECK(launch<decltype(stored)>(job, c10::cuda::getCurrentCUDAStream())); });
}

}  // namespace apex::kernels::statistics::cuda
