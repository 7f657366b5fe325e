#include "kernels/normalization/cuda/launch.h"

namespace apex::kernels::normalization::cuda {
namespace {

constexpr int kThreads = kSlots * kWarp;

// The threads of a row: a warp of the block, or all of the block.
template <int kCount>
struct DeviceGroup {
  static constexpr int kThreads = kCount;

  template <class T>
  struct PerThread {
    T value;
    __device__ T& operator[](int) { return value; }
  };

  template <class Work>
  __device__ void each_thread(const Work& work) {
    work(static_cast<int>(threadIdx.x) % kThreads);
  }

  template <class Real>
  __device__ Real sum(PerThread<Lanes<Real>>& lanes) {
    Real(&values)[kQuad] = lanes.value.values;
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int k = 0; k < kQuad; ++k) values[k] = add(values[k], __shfl_xor_sync(0xffffffffu, values[k], apart));
    }
    const Real total = fold<kQuad>(values);
    if constexpr (kThreads == kWarp) {
      return total;
    } else {
      return sum_of_warps(total);
    }
  }

 private:
  template <class Real>
  __device__ Real sum_of_warps(Real total) {
    __shared__ Real totals[kSlots];
    __syncthreads();  // what another sum left there has been read
    if (threadIdx.x % kWarp == 0) totals[threadIdx.x / kWarp] = total;
    __syncthreads();
    Real slots[kSlots];
#pragma unroll
    for (int i = 0; i < kSlots; ++i) slots[i] = totals[i];
    return fold<kSlots>(slots);
  }
};

// Calls visit(group, row) for the rows of this group. All threads of a group get the same rows.
template <int kCount, class Visit>
__device__ void each_row(int64_t rows, const Visit& visit) {
  constexpr int kGroups = kThreads / kCount;
  DeviceGroup<kCount> group;
  const int64_t first = int64_t{blockIdx.x} * kGroups + threadIdx.x / kCount;
  for (int64_t row = first; row < rows; row += int64_t{gridDim.x} * kGroups) visit(group, row);
}

template <class Kind, class Real, int kCount>
__global__ void __launch_bounds__(kThreads) forward(ForwardArgs<Real> args) {
  each_row<kCount>(args.rows, [&](DeviceGroup<kCount>& group, int64_t row) {
    ForwardRow<Kind, Real, DeviceGroup<kCount>>(group, args, row).run();
  });
}

template <class Kind, class Real, int kCount>
__global__ void __launch_bounds__(kThreads) grad_of_input(BackwardArgs<Real> args) {
  each_row<kCount>(args.rows, [&](DeviceGroup<kCount>& group, int64_t row) {
    BackwardRow<Kind, Real, DeviceGroup<kCount>>(group, args, row).run();
  });
}

template <class Kind, class Real>
__global__ void __launch_bounds__(kThreads) block_sums(BackwardArgs<Real> args, BlockSums<Real> sums) {
  const int64_t quad = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (quad * kQuad < args.size) add_up_rows<Kind>(args, sums, blockIdx.y, quad);
}

template <class Real>
__global__ void totals(const Real* sums, int64_t blocks, int64_t size, Target total) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column < size) add_up_blocks(sums, blocks, size, column, total);
}

unsigned blocks_for(int64_t count, int64_t each) {
  constexpr int64_t kMost = 1 << 20;  // the rest are rows that blocks take in turn
  const int64_t blocks = (count + each - 1) / each;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

}  // namespace

template <class Kind, class Real>
cudaError_t launch_forward(const ForwardArgs<Real>& args, cudaStream_t stream) {
  if (args.size <= kSegment) {
    forward<Kind, Real, kWarp><<<blocks_for(args.rows, kSlots), kThreads, 0, stream>>>(args);
  } else {
    forward<Kind, Real, kThreads><<<blocks_for(args.rows, 1), kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <class Kind, class Real>
cudaError_t launch_grad_input(const BackwardArgs<Real>& args, cudaStream_t stream) {
  if (args.size <= kSegment) {
    grad_of_input<Kind, Real, kWarp><<<blocks_for(args.rows, kSlots), kThreads, 0, stream>>>(args);
  } else {
    grad_of_input<Kind, Real, kThreads><<<blocks_for(args.rows, 1), kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <class Kind, class Real>
cudaError_t launch_block_sums(const BackwardArgs<Real>& args, const BlockSums<Real>& sums, cudaStream_t stream) {
  const int64_t quads = (args.size + kQuad - 1) / kQuad;
  const dim3 grid(static_cast<unsigned>((quads + kThreads - 1) / kThreads), static_cast<unsigned>(sums.blocks));
  block_sums<Kind, Real><<<grid, kThreads, 0, stream>>>(args, sums);
  return cudaGetLastError();
}

template <class Real>
cudaError_t launch_totals(const Real* sums, int64_t blocks, int64_t size, const Target& total, cudaStream_t stream) {
  constexpr int kColumns = 128;
  totals<<<static_cast<unsigned>((size + kColumns - 1) / kColumns), kColumns, 0, stream>>>(sums, blocks, size, total);
  return cudaGetLastError();
}

template cudaError_t launch_forward<Layer, float>(const ForwardArgs<float>&, cudaStream_t);
template cudaError_t launch_forward<Layer, double>(const ForwardArgs<double>&, cudaStream_t);
template cudaError_t launch_forward<Rms, float>(const ForwardArgs<float>&, cudaStream_t);
template cudaError_t launch_forward<Rms, double>(const ForwardArgs<double>&, cudaStream_t);
template cudaError_t launch_grad_input<Layer, float>(const BackwardArgs<float>&, cudaStream_t);
template cudaError_t launch_grad_input<Layer, double>(const BackwardArgs<double>&, cudaStream_t);
template cudaError_t launch_grad_input<Rms, float>(const BackwardArgs<float>&, cudaStream_t);
template cudaError_t launch_grad_input<Rms, double>(const BackwardArgs<double>&, cudaStream_t);
template cudaError_t launch_block_sums<Layer, float>(const BackwardArgs<float>&, const BlockSums<float>&, cudaStream_t);
template cudaError_t launch_block_sums<Layer, double>(const BackwardArgs<double>&, const BlockSums<double>&, cudaStream_t);
template cudaError_t launch_block_sums<Rms, float>(const BackwardArgs<float>&, const BlockSums<float>&, cudaStream_t);
template cudaError_t launch_block_sums<Rms, double>(const BackwardArgs<double>&, const BlockSums<double>&, cudaStream_t);
template cudaError_t launch_totals(const float*, int64_t, int64_t, const Target&, cudaStream_t);
template cudaError_t launch_totals(const double*, int64_t, int64_t, const Target&, cudaStream_t);

}  // namespace apex::kernels::normalization::cuda
