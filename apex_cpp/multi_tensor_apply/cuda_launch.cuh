#pragma once

#include <apex_cpp/multi_tensor_apply/metadata.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

namespace apex::amp_C::detail {

template <int depth, class Functor, class... Args>
__global__ void multi_tensor_apply_kernel(int64_t chunk_size, volatile int* noop_flag, TensorListMetadata<depth> tl,
                                          Functor functor, Args... args) {
  functor(chunk_size, noop_flag, tl, args...);
}

// Launches on the current stream. The host does not wait.
template <int depth, class Functor, class... Args>
void launch_on_cuda(int64_t block_size, int64_t chunk_size, int* noop_flag, const TensorListMetadata<depth>& tl, int blocks,
                    const Functor& functor, const Args&... args) {
  multi_tensor_apply_kernel<depth, Functor, Args...>
      <<<blocks, static_cast<unsigned>(block_size), 0, c10::cuda::getCurrentCUDAStream()>>>(chunk_size, noop_flag, tl, functor,
                                                                                            args...);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace apex::amp_C::detail
