#include "kernels/cuda/device_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace apex::kernels::cuda {
namespace {

at::TensorOptions bytes_on(c10::Device device) { return at::TensorOptions().dtype(at::kByte).device(device); }

// A stream for uploads only: a stream of LibTorch's pool could be capturing, now or soon. Never destroyed, since a table that a
// graph keeps may outlive everything else.
c10::cuda::CUDAStream upload_stream(c10::Device device) {
  static std::mutex mutex;
  static auto* const streams = new std::map<c10::DeviceIndex, cudaStream_t>;
  const std::lock_guard<std::mutex> lock(mutex);
  cudaStream_t& stream = (*streams)[device.index()];
  if (stream == nullptr) C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return c10::cuda::getStreamFromExternal(stream, device.index());
}

}  // namespace

DeviceTable::DeviceTable(const plan::Plan& plan, c10::Device device)
    : image_(plan, device), home_(c10::cuda::getCurrentCUDAStream(device.index())) {
  is_capturing(home_) ? upload_beside_capture(image_.bytes(), device) : upload(image_.bytes(), device);
  uploaded_.record(home_);
}

void DeviceTable::upload(const std::vector<std::byte>& bytes, c10::Device device) {
  memory_ = at::empty({static_cast<int64_t>(bytes.size())}, bytes_on(device));
  // Pinned memory, so that the host does not wait for the copy. The allocator does not reuse it before the copy is done.
  const at::Tensor staging = at::empty({memory_.numel()}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  if (!bytes.empty()) std::memcpy(staging.mutable_data_ptr(), bytes.data(), bytes.size());
  memory_.copy_(staging, /*non_blocking=*/true);
}

// During a capture the upload runs on a stream that is not captured. The table does not change between replays, and calls
// outside of the graph may use it: so neither its memory nor the copy may belong to the graph, and the copy must be complete
// before the graph first runs.
void DeviceTable::upload_beside_capture(const std::vector<std::byte>& bytes, c10::Device device) {
  const c10::cuda::CUDAStreamCaptureModeGuard allowed(cudaStreamCaptureModeRelaxed);
  home_ = upload_stream(device);
  const c10::cuda::CUDAStreamGuard beside(home_);
  memory_ = at::empty({static_cast<int64_t>(bytes.size())}, bytes_on(device));
  C10_CUDA_CHECK(
      cudaMemcpyAsync(memory_.mutable_data_ptr(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, home_.stream()));
  C10_CUDA_CHECK(cudaStreamSynchronize(home_.stream()));
}

Table DeviceTable::ready_on(c10::cuda::CUDAStream stream, bool with_scratch) {
  wait_on(stream);
  return image_.table_at(memory_.mutable_data_ptr(), with_scratch ? scratch_for(stream) : nullptr);
}

void DeviceTable::wait_on(c10::cuda::CUDAStream stream) {
  if (is_capturing(stream)) {
    // A captured stream must not wait for an event recorded outside of the capture.
    const c10::cuda::CUDAStreamCaptureModeGuard allowed(cudaStreamCaptureModeRelaxed);
    uploaded_.synchronize();
  } else if (stream != home_) {
    uploaded_.block(stream);
    c10::cuda::CUDACachingAllocator::recordStream(memory_.storage().data_ptr(), stream);
  }
}

// The memory is zeroed on the stream: a graph zeroes it at each replay, so that an aborted replay leaves nothing behind.
void* DeviceTable::scratch_for(c10::cuda::CUDAStream stream) {
  const auto make = [&] { return at::zeros({static_cast<int64_t>(image_.scratch_size())}, bytes_on(stream.device())); };
  const bool captured = is_capturing(stream);
  const at::Tensor scratch = scratch_.of_launch(stream.id(), captured, make);
  if (captured) keep_with_graph(stream, std::make_shared<at::Tensor>(scratch));
  return scratch.mutable_data_ptr();
}

namespace {

using Object = std::shared_ptr<const void>;

// Objects to be freed by the next launch outside of a capture: those whose graphs are destroyed, and tables that nothing uses.
// CUDA reports the destruction of a graph on a thread that must not call CUDA. A thread's tables end with the thread, which may
// outlive the CUDA driver when the process exits.
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

// Never destroyed, since graphs and threads may outlive static objects.
Released& released() {
  static auto* const all = new Released;
  return *all;
}

std::shared_ptr<DeviceTable> make_table(const plan::Plan& plan, c10::Device device) {
  const auto release = [](DeviceTable* table) { released().add(std::shared_ptr<DeviceTable>(table)); };
  return {new DeviceTable(plan, device), release};
}

}  // namespace

Table table_for_launch(const plan::Groups& plan, c10::cuda::CUDAStream stream, bool with_scratch) {
  using Tables = std::map<c10::Device, std::shared_ptr<DeviceTable>, bool (*)(c10::Device, c10::Device)>;
  const auto by_index = [](c10::Device a, c10::Device b) { return a.index() < b.index(); };
  if (plan->kept_by_driver == nullptr) plan->kept_by_driver = std::make_shared<Tables>(by_index);
  std::shared_ptr<DeviceTable>& table = (*std::static_pointer_cast<Tables>(plan->kept_by_driver))[stream.device()];
  const bool captured = is_capturing(stream);
  // Not during a capture: LibTorch 2.15's allocator would query an event for memory that several streams used, which CUDA
  // forbids there.
  if (!captured) released().free_all();
  if (table == nullptr) table = make_table(*plan, stream.device());
  if (captured) keep_with_graph(stream, table);
  return table->ready_on(stream, with_scratch);
}

namespace {

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

void keep_with_graph(c10::cuda::CUDAStream stream, Object object) {
  cudaUserObject_t owner = nullptr;
  auto kept = std::make_unique<Object>(std::move(object));
  C10_CUDA_CHECK(cudaUserObjectCreate(&owner, kept.get(), release, 1, cudaUserObjectNoDestructorSync));
  kept.release();
  C10_CUDA_CHECK(cudaGraphRetainUserObject(captured_graph(stream), owner, 1, cudaGraphUserObjectMove));
}

}  // namespace apex::kernels::cuda
