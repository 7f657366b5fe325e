#include "kernels/cuda/norms.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch.h"

namespace apex::kernels::cuda {

template <class Op>
__global__ void __launch_bounds__(kSumThreads) sums_kernel(const Table table, const Op op) {
  BLOCK_SHARED(double, memory, DeviceBlock::kSharedBytes / sizeof(double));
  run_sums(DeviceBlock{memory}, table, op);
}

template <class Op>
cudaError_t launch_sums(const Table& table, const Op& op, cudaStream_t stream) {
  return launch(sums_kernel<Op>, table, op, table.chunks.count, kSumThreads, stream);
}

#define APEX_CPP_DEFINE_LAUNCH(Op) template cudaError_t launch_sums(const Table&, const Op&, cudaStream_t);
APEX_CPP_FOR_EACH_SUM_OP(APEX_CPP_DEFINE_LAUNCH)
#undef APEX_CPP_DEFINE_LAUNCH

__global__ void update_scale_kernel(const rules::ScaleUpdate update, const LossScaleAddresses addresses) {
  addresses.apply(update);
}

cudaError_t launch_update_scale(const rules::ScaleUpdate& update, const LossScaleAddresses& addresses, cudaStream_t stream) {
  return launch_kernel(update_scale_kernel, 1, 1, stream, update, addresses);
}

}  // namespace apex::kernels::cuda
