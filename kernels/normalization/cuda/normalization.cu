#include "kernels/normalization/cuda/launch.h"
#include "kernels/normalization/cuda/row_groups.cuh"

namespace apex::kernels::normalization::cuda {

template <class Kind, class Real>
cudaError_t launch_forward(const ForwardArgs<Real>& args, cudaStream_t stream) {
  return launch_rows<ForwardRow, Kind, Real>(args, stream);
}

template cudaError_t launch_forward<Layer, float>(const ForwardArgs<float>&, cudaStream_t);
template cudaError_t launch_forward<Layer, double>(const ForwardArgs<double>&, cudaStream_t);
template cudaError_t launch_forward<Rms, float>(const ForwardArgs<float>&, cudaStream_t);
template cudaError_t launch_forward<Rms, double>(const ForwardArgs<double>&, cudaStream_t);

template <class Kind, class Real>
cudaError_t launch_grad_input(const BackwardArgs<Real>& args, cudaStream_t stream) {
  return launch_rows<BackwardRow, Kind, Real>(args, stream);
}

template cudaError_t launch_grad_input<Layer, float>(const BackwardArgs<float>&, cudaStream_t);
template cudaError_t launch_grad_input<Layer, double>(const BackwardArgs<double>&, cudaStream_t);
template cudaError_t launch_grad_input<Rms, float>(const BackwardArgs<float>&, cudaStream_t);
template cudaError_t launch_grad_input<Rms, double>(const BackwardArgs<double>&, cudaStream_t);

constexpr int kColumnThreads = 256;
constexpr int kTotalThreads = 128;

template <class Kind, class Real>
__global__ void __launch_bounds__(kColumnThreads) block_sums(BackwardArgs<Real> args, BlockSums<Real> sums) {
  const int64_t quad = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (quad * kQuad < args.size) add_up_rows<Kind>(args, sums, blockIdx.y, quad);
}

template <class Real>
__global__ void totals(const Real* sums, int64_t blocks, int64_t size, Target total) {
  const int64_t column = int64_t{blockIdx.x} * kTotalThreads + threadIdx.x;
  if (column < size) add_up_blocks(sums, blocks, size, column, total);
}

template <class Kind, class Real>
cudaError_t launch_block_sums(const BackwardArgs<Real>& args, const BlockSums<Real>& sums, cudaStream_t stream) {
  const int64_t quads = (args.size + kQuad - 1) / kQuad;
  const dim3 grid(static_cast<unsigned>((quads + kColumnThreads - 1) / kColumnThreads), static_cast<unsigned>(sums.blocks));
  return kernels::cuda::launch_kernel(block_sums<Kind, Real>, grid, kColumnThreads, stream, args, sums);
}

template <class Real>
cudaError_t launch_totals(const Real* sums, int64_t blocks, int64_t size, const Target& total, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>((size + kTotalThreads - 1) / kTotalThreads);
  return kernels::cuda::launch_kernel(totals<Real>, grid, kTotalThreads, stream, sums, blocks, size, total);
}

template cudaError_t launch_block_sums<Layer, float>(const BackwardArgs<float>&, const BlockSums<float>&, cudaStream_t);
template cudaError_t launch_block_sums<Layer, double>(const BackwardArgs<double>&, const BlockSums<double>&, cudaStream_t);
template cudaError_t launch_block_sums<Rms, float>(const BackwardArgs<float>&, const BlockSums<float>&, cudaStream_t);
template cudaError_t launch_block_sums<Rms, double>(const BackwardArgs<double>&, const BlockSums<double>&, cudaStream_t);
template cudaError_t launch_totals(const float*, int64_t, int64_t, const Target&, cudaStream_t);
template cudaError_t launch_totals(const double*, int64_t, int64_t, const Target&, cudaStream_t);

}  // namespace apex::kernels::normalization::cuda
