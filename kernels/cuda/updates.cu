#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/updates.h"

namespace apex::kernels::cuda {

constexpr int kThreads = 256;

template <class Op>
__global__ void __launch_bounds__(kThreads) updates_kernel(const Table table, const Op op) {
  run_updates(DeviceBlock{nullptr}, table, op);
}

template <class Op>
cudaError_t launch_updates(const Table& table, const Op& op, cudaStream_t stream) {
  return launch(updates_kernel<Op>, table, op, table.spans.count, kThreads, stream);
}

#define APEX_CPP_DEFINE_LAUNCH(Op) template cudaError_t launch_updates(const Table&, const Op&, cudaStream_t);
APEX_CPP_FOR_EACH_UPDATE_OP(APEX_CPP_DEFINE_LAUNCH)
#undef APEX_CPP_DEFINE_LAUNCH

}  // namespace apex::kernels::cuda
