#pragma once
// Replaces the header of libtorch_cuda: as much of its class as the tests use.
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

namespace at::cuda {

class CUDAGraph {
 public:
  CUDAGraph() = default;
  CUDAGraph(const CUDAGraph&) = delete;
  CUDAGraph& operator=(const CUDAGraph&) = delete;

  ~CUDAGraph() {
    if (exec_ == nullptr) return;
    C10_CUDA_CHECK_WARN(cudaGraphExecDestroy(exec_));
    c10::cuda::CUDACachingAllocator::releasePool(device_, pool_);
  }

  // What is allocated on the captured stream comes from a pool of the graph.
  void capture_begin() {
    const auto stream = c10::cuda::getCurrentCUDAStream();
    device_ = stream.device_index();
    stream_ = stream.stream();
    static c10::CaptureId_t pools = 0;
    pool_ = {++pools, 0};
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(device_, pool_, [this](cudaStream_t used) { return used == stream_; });
    C10_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  }

  void capture_end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_);
    C10_CUDA_CHECK(error);
    C10_CUDA_CHECK(cudaGraphInstantiate(&exec_, graph, 0));
    C10_CUDA_CHECK(cudaGraphDestroy(graph));
  }

  void replay() { C10_CUDA_CHECK(cudaGraphLaunch(exec_, c10::cuda::getCurrentCUDAStream())); }

 private:
  c10::DeviceIndex device_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  c10::MempoolId_t pool_{0, 0};
};

}  // namespace at::cuda
