#include "kernels/cuda/graph_lifetime.h"

#include <c10/cuda/CUDAException.h>

#include <mutex>
#include <vector>

namespace apex::kernels::cuda {
namespace {

using Object = std::shared_ptr<const void>;

// Objects whose graphs are gone. CUDA tells so on a thread of its own, where CUDA must not be called: there is no freeing
// device memory there.
class Released {
 public:
  void add(Object object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.push_back(std::move(object));
  }

  void free_all() {
    std::vector<Object> objects;
    const std::lock_guard<std::mutex> lock(mutex_);
    objects.swap(objects_);
  }

 private:
  std::mutex mutex_;
  std::vector<Object> objects_;
};

// Never destroyed: graphs may outlive everything.
Released& released() {
  static auto* const all = new Released;
  return *all;
}

void CUDART_CB release(void* object) {
  const std::unique_ptr<Object> owner(static_cast<Object*>(object));
  released().add(std::move(*owner));
}

cudaGraph_t captured_graph(c10::cuda::CUDAStream stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream.stream(), &status, &id, &graph));
#else
  C10_CUDA_CHECK(cudaStreamGetCaptureInfo_v2(stream.stream(), &status, &id, &graph));
#endif
  return graph;
}

}  // namespace

bool is_capturing(c10::cuda::CUDAStream stream) {
  cudaStreamCaptureStatus status{};
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream.stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

void free_released() { released().free_all(); }

void keep_with_graph(c10::cuda::CUDAStream stream, Object object) {
  free_released();
  cudaUserObject_t owner = nullptr;
  auto kept = std::make_unique<Object>(std::move(object));
  C10_CUDA_CHECK(cudaUserObjectCreate(&owner, kept.get(), release, 1, cudaUserObjectNoDestructorSync));
  kept.release();
  C10_CUDA_CHECK(cudaGraphRetainUserObject(captured_graph(stream), owner, 1, cudaGraphUserObjectMove));
}

}  // namespace apex::kernels::cuda
