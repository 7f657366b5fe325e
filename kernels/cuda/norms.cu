#include "kernels/cuda/norms.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch.h"

namespace apex::kernels::cuda {

// Blocks that a multiprocessor should hold: as many as keep its memory busy without spilling registers.
template <class Op, bool kDoubles>
constexpr int kBlocksAtOnce = kDoubles ? 2 : 4;
template <>
constexpr int kBlocksAtOnce<LambStage1, false> = 2;
template <>
constexpr int kBlocksAtOnce<Split<LambSums>, false> = 2;

template <class Op, bool kDoubles>
__global__ void __launch_bounds__(kSumThreads, kBlocksAtOnce<Op, kDoubles>) sums_kernel(const Table table, const Op op) {
  BLOCK_SHARED(double, memory, DeviceBlock::kSharedBytes / sizeof(double));
  run_sums<kDoubles>(DeviceBlock{memory}, table, op);
}

template <class Op>
cudaError_t launch_sums(const Table& table, const Op& op, cudaStream_t stream) {
  if constexpr (Op::kTakesDoubles) {
    if (table.has_double) return launch<sums_kernel<Op, true>>(table, op, table.chunks.count, kSumThreads, stream);
  }
  return launch<sums_kernel<Op, false>>(table, op, table.chunks.count, kSumThreads, stream);
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
