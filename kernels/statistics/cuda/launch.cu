#include "kernels/statistics/cuda/launch.h"

#include <thrust/system/cuda/execution_policy.h>

#include "kernels/statistics/lane.h"
#include "kernels/statistics/passes.h"

namespace apex::kernels::statistics::cuda {

template <class Stored>
cudaError_t launch(const Job& job, cudaStream_t stream) {
  run_passes(thrust::cuda::par_nosync.on(stream), job, ReduceLane<Stored>{job}, kLanes);
  return cudaGetLastError();
}

template cudaError_t launch<float>(const Job&, cudaStream_t);
template cudaError_t launch<double>(const Job&, cudaStream_t);
template cudaError_t launch<rules::Half>(const Job&, cudaStream_t);
template cudaError_t launch<rules::BFloat16>(const Job&, cudaStream_t);

}  // namespace apex::kernels::statistics::cuda
