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

template cudaError_t launch_updates(const Table&, const Scale&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const CheckFinite&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const Axpby&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const Copy&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const PlainSgd&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const MomentumSgd&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const Adam&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const Adagrad&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const NovoGrad&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const LambStage2&, cudaStream_t);
template cudaError_t launch_updates(const Table&, const Larc&, cudaStream_t);

}  // namespace apex::kernels::cuda
