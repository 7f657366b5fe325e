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

constexpr int kColumnThreads = 128;

template <class Kind, class Access, class Real>
__global__ void __launch_bounds__(kColumnThreads) block_sums(BackwardArgs<Real> args, BlockSums<Real> sums) {
  const int64_t pair = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (pair * kPair < args.size) add_up_rows<Kind, Access>(args, sums, blockIdx.y, pair);
}

// A warp has adjacent columns.
constexpr int kTotalColumns = 32;
constexpr int kTotalThreads = kTotalColumns * kTotalShares;

// The y index of a block is the total's among those that have memory.
template <class Real>
__global__ void __launch_bounds__(kTotalThreads) totals(BlockSums<Real> sums, int64_t size, Target weight, Target bias) {
  using Shares = Real[kTotalShares];
  BLOCK_SHARED(Shares, shares, kTotalColumns);
  const int here = static_cast<int>(threadIdx.x) % kTotalColumns, share = static_cast<int>(threadIdx.x) / kTotalColumns;
  const int64_t column = int64_t{blockIdx.x} * kTotalColumns + here;
  const bool is_weight = blockIdx.y == 0 && weight.data != nullptr;
  const Real* const of_blocks = is_weight ? sums.weight : sums.bias;
  if (column < size) shares[here][share] = add_up_share(of_blocks, sums.blocks, size, column, share);
  __syncthreads();
  if (column >= size || share != 0) return;
  is_weight ? store_total(shares[here], column, weight) : store_total(shares[here], column, bias);
}

template <class Kind, class Real>
cudaError_t launch_block_sums(const BackwardArgs<Real>& args, const BlockSums<Real>& sums, cudaStream_t stream) {
  const int64_t pairs = (args.size + kPair - 1) / kPair;
  const dim3 grid(static_cast<unsigned>((pairs + kColumnThreads - 1) / kColumnThreads), static_cast<unsigned>(sums.blocks));
  return with_access<Real>(args.mix, [&](auto access) {
    return kernels::cuda::launch_kernel(block_sums<Kind, decltype(access), Real>, grid, kColumnThreads, stream, args, sums);
  });
}

template <class Real>
cudaError_t launch_totals(const BlockSums<Real>& sums, int64_t size, const Target& weight, const Target& bias,
                          cudaStream_t stream) {
  const unsigned count = (weight.data != nullptr ? 1u : 0u) + (bias.data != nullptr ? 1u : 0u);
  const dim3 grid(static_cast<unsigned>((size + kTotalColumns - 1) / kTotalColumns), count);
  return kernels::cuda::launch_kernel(totals<Real>, grid, kTotalThreads, stream, sums, size, weight, bias);
}

template cudaError_t launch_block_sums<Layer, float>(const BackwardArgs<float>&, const BlockSums<float>&, cudaStream_t);
template cudaError_t launch_block_sums<Layer, double>(const BackwardArgs<double>&, const BlockSums<double>&, cudaStream_t);
template cudaError_t launch_block_sums<Rms, float>(const BackwardArgs<float>&, const BlockSums<float>&, cudaStream_t);
template cudaError_t launch_block_sums<Rms, double>(const BackwardArgs<double>&, const BlockSums<double>&, cudaStream_t);
template cudaError_t launch_totals(const BlockSums<float>&, int64_t, const Target&, const Target&, cudaStream_t);
template cudaError_t launch_totals(const BlockSums<double>&, int64_t, const Target&, const Target&, cudaStream_t);

}  // namespace apex::kernels::normalization::cuda
