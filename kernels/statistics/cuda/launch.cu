#include "kernels/statistics/cuda/launch.h"

#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system/system_error.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/statistics/bins.h"

namespace apex::kernels::statistics::cuda {
namespace {

// The counts are in shared memory. In thread-local memory, the driver would reserve a table for every thread that the device
// can hold.
template <class Stored>
__global__ void __launch_bounds__(kTileLanes) read_tiles_kernel(Job job) {
  BLOCK_SHARED(uint32_t, counts, kBins<ComputesIn<Stored>>);
  BLOCK_SHARED(Sums, lanes, kTileLanes);
  const kernels::cuda::DeviceBlock block{nullptr};
  for (int64_t tile = blockIdx.x; tile < job.tiles; tile += gridDim.x) read_tile<Stored>(block, job, tile, counts, lanes);
}

}  // namespace

template <class Stored>
cudaError_t launch(const Job& job, cudaStream_t stream) {
  if (job.tiles > 0) {
    const unsigned blocks = kernels::cuda::blocks_for(job.tiles);
    const cudaError_t error = kernels::cuda::launch_kernel(read_tiles_kernel<Stored>, blocks, kTileLanes, stream, job);
    if (error != cudaSuccess) return error;
  }
  try {
    const thrust::counting_iterator<int64_t> first(0);
    thrust::for_each_n(thrust::cuda::par_nosync.on(stream), first, job.tensors, AddTiles{job});
  } catch (const thrust::system_error& error) {
    return static_cast<cudaError_t>(error.code().value());
  }
  return cudaGetLastError();
}

template cudaError_t launch<float>(const Job&, cudaStream_t);
template cudaError_t launch<double>(const Job&, cudaStream_t);
template cudaError_t launch<rules::Half>(const Job&, cudaStream_t);
template cudaError_t launch<rules::BFloat16>(const Job&, cudaStream_t);

}  // namespace apex::kernels::statistics::cuda
