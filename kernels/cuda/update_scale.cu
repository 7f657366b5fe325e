#include "kernels/cuda/launch.h"

namespace apex::kernels::cuda {

__global__ void update_scale_kernel(const rules::ScaleUpdate rule, const LossScaleAddresses addresses) {
  addresses.apply(rule);
}

cudaError_t launch_update_scale(const rules::ScaleUpdate& rule, const LossScaleAddresses& addresses, cudaStream_t stream) {
  update_scale_kernel<<<1, 1, 0, stream>>>(rule, addresses);
  return cudaGetLastError();
}

}  // namespace apex::kernels::cuda
