#pragma once
// Applies functors to lists of tensors, for ported code that has its own multi-tensor kernels.
#include <apex_cpp/multi_tensor_apply/metadata.h>
#include <apex_cpp/multi_tensor_apply/tensor_lists.h>
#include <c10/core/DeviceGuard.h>
#ifdef __CUDACC__
#include <apex_cpp/multi_tensor_apply/cuda_launch.cuh>
#endif

namespace apex::amp_C {

/// Calls `functor` for every chunk of `chunk_size` elements of the tensors in `tensor_lists` (the last chunk of a tensor may be
/// smaller). Apex: multi_tensor_apply of csrc/multi_tensor_apply.cuh, with the same arguments.
///
/// ```
/// template <class T>
/// struct Axpy {  // y += a * x
///   C10_HOST_DEVICE void operator()(int64_t chunk_size, volatile int* noop_flag, TensorListMetadata<2>& tl, float a) const {
///     if (*noop_flag) return;
///     const apex::amp_C::Chunk chunk(tl, chunk_size);
///     const T* x = chunk.template data<T>(0);
///     T* y = chunk.template data<T>(1);
///     for (int64_t i : chunk.elements()) y[i] = static_cast<T>(a * static_cast<float>(x[i]) + static_cast<float>(y[i]));
///   }
/// };
/// multi_tensor_apply<2>(512, 65536, noop_flag, tensor_lists, Axpy<float>(), 0.5f);
/// ```
/// To port an Apex functor: declare its operator `C10_HOST_DEVICE` in place of `__device__`, let `Chunk` compute what the first
/// lines compute from blockIdx (`tl.block()` stands for it), and let `chunk.elements()` be the loop that uses threadIdx and
/// blockDim. The fields of `TensorListMetadata` are Apex's.
///
/// Devices: CPU tensors always, with the chunks spread over all threads in any order; `block_size` has no effect there. CUDA
/// tensors if nvcc compiles the call: one block of `block_size` threads per chunk, on the current stream of the tensors'
/// device, without synchronisation; otherwise c10::NotImplementedError.
/// `noop_flag` is only passed to the functor, which may read it and set it to 1.
/// Tensors: any number, of any size, empty tensors anywhere; `check_tensor_lists` names the errors. Caller and functor must
/// agree on the type T of the addresses. Overlapping tensors are not detected. Autograd does not see the writes: version
/// counters stay.
template <int depth, class Functor, class... Args>
static void multi_tensor_apply(int64_t block_size, int64_t chunk_size, const at::Tensor& noop_flag,
                               const TensorLists& tensor_lists, Functor functor, Args... args) {
  const char* const op = "multi_tensor_apply";
  check_tensor_lists(op, chunk_size, noop_flag, tensor_lists, depth);
  const at::Device device = noop_flag.device();
  TORCH_CHECK_VALUE(block_size > 0, op, ": block_size is ", block_size, ". Give a positive number of threads.");
  if (device.is_cpu()) {
    int* const flag = noop_flag.data_ptr<int>();
    detail::for_each_launch<depth>(op, tensor_lists, chunk_size, [&](const auto& tl, int blocks, int64_t elements) {
      detail::for_each_host_block(blocks, elements, [&](int begin, int end) {
        TensorListMetadata<depth> own = tl;
        for (own.host_block = begin; own.host_block < end; ++own.host_block) functor(chunk_size, flag, own, args...);
      });
    });
    return;
  }
#ifdef __CUDACC__
  TORCH_CHECK_NOT_IMPLEMENTED(device.is_cuda(), op, " is not implemented for tensors on ", device, ".");
  const c10::DeviceGuard guard(device);
  int* const flag = noop_flag.data_ptr<int>();
  detail::for_each_launch<depth>(op, tensor_lists, chunk_size, [&](const auto& tl, int blocks, int64_t) {
    detail::launch_on_cuda(block_size, chunk_size, flag, tl, blocks, functor, args...);
  });
#else
  TORCH_CHECK_NOT_IMPLEMENTED(false, op, " is not implemented for tensors on ", device,
                              " in files that a C++ compiler compiles: compile the calling file with nvcc.");
#endif
}

}  // namespace apex::amp_C

// Apex declares these in no namespace, where ported code looks for them.
using apex::amp_C::multi_tensor_apply;
using apex::amp_C::TensorListMetadata;
