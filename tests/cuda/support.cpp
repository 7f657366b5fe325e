#include "tests/cuda/support.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "tests/needs_gpus.h"

namespace cuda_test {

void OnGpu::SetUp() { APEX_CPP_NEEDS_GPUS(1); }

void OnTwoGpus::SetUp() { APEX_CPP_NEEDS_GPUS(2); }

Tensors on_gpu(const Tensors& tensors) {
  Tensors moved;
  for (const at::Tensor& tensor : tensors) {
    // The same offset from a multiple of 64 bytes as on the CPU.
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64 / tensor.element_size());
    const auto memory = at::empty({tensor.numel() + offset}, tensor.options().device(at::kCUDA));
    moved.push_back(memory.narrow(0, offset, tensor.numel()).copy_(tensor));
  }
  return moved;
}

Tensors on_cpu(const Tensors& tensors) {
  Tensors moved;
  for (const at::Tensor& tensor : tensors) moved.push_back(tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  return moved;
}

Problem on_gpu(const Problem& problem) {
  return {on_gpu(problem.grads),  on_gpu(problem.params), on_gpu(problem.first),
          on_gpu(problem.second), on_gpu(problem.models), problem.norms.defined() ? problem.norms.cuda() : problem.norms};
}

at::Tensor clear_flag_on_gpu() { return at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(at::kCUDA)); }

void capture(at::cuda::CUDAGraph& graph, const std::function<void()>& work) {
  c10::cuda::device_synchronize();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  graph.capture_begin();
  work();
  graph.capture_end();
}

NoWaiting::NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
NoWaiting::~NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }

}  // namespace cuda_test
