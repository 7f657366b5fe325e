#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/updates.h"

namespace apex::kernels::cuda {

constexpr int kThreads = 256;

// Blocks that a multiprocessor should hold: limits registers to what leaves memory busy without spilling.
constexpr int blocks_at_once(bool doubles) { return doubles ? 1 : 2; }

template <class Op, bool kDoubles>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kDoubles)) updates_kernel(const Table table, const Op op) {
  run_updates<kDoubles>(DeviceBlock{nullptr}, table, op);
}

template <class Op>
cudaError_t launch_updates(const Table& table, const Op& op, cudaStream_t stream) {
  if constexpr (Op::kTakesDoubles) {
    if (table.has_double) return launch<updates_kernel<Op, true>>(table, op, table.spans.count, kThreads, stream);
  }
  return launch<updates_kernel<Op, false>>(table, op, table.spans.count, kThreads, stream);
}

#define APEX_CPP_DEFINE_LAUNCH(Op) template cudaError_t launch_updates(const Table&, const Op&, cudaStream_t);
APEX_CPP_FOR_EACH_UPDATE_OP(APEX_CPP_DEFINE_LAUNCH)
#undef APEX_CPP_DEFINE_LAUNCH

}  // namespace apex::kernels::cuda
