#pragma once

#include <cuda_runtime_api.h>

#include "kernels/normalization/cuda/columns.h"

// Launches of the kernel bodies on the current device, with raw pointers and plain values only. Kind is Layer or Rms, Real is
// float or double.
namespace apex::kernels::normalization::cuda {

template <class Kind, class Real>
cudaError_t launch_forward(const ForwardArgs<Real>& args, cudaStream_t stream);

template <class Kind, class Real>
cudaError_t launch_grad_input(const BackwardArgs<Real>& args, cudaStream_t stream);

template <class Kind, class Real>
cudaError_t launch_block_sums(const BackwardArgs<Real>& args, const BlockSums<Real>& sums, cudaStream_t stream);

// Adds up the blocks' sums. A total without memory is left out.
template <class Real>
cudaError_t launch_totals(const BlockSums<Real>& sums, int64_t size, const Target& weight, const Target& bias,
                          cudaStream_t stream);

}  // namespace apex::kernels::normalization::cuda
