#include "kernels/cuda/device_table.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstring>
#include <map>
#include <memory>

#include "kernels/cuda/graph_lifetime.h"

namespace apex::kernels::cuda {
namespace {

at::Tensor bytes_on(c10::Device device, size_t size) {
  return at::empty({static_cast<int64_t>(size)}, at::TensorOptions().dtype(at::kByte).device(device));
}

}  // namespace

DeviceTable::DeviceTable(const plan::Plan& plan, c10::Device device) : home_(c10::cuda::getCurrentCUDAStream(device.index())) {
  const TableImage image(plan, device);
  is_capturing(home_) ? upload_beside_capture(image.bytes(), device) : upload(image.bytes(), device);
  uploaded_.record(home_);
  table_ = image.table_at(memory_.mutable_data_ptr());
}

void DeviceTable::upload(const std::vector<std::byte>& bytes, c10::Device device) {
  memory_ = bytes_on(device, bytes.size());
  // Pinned, for a copy that the host does not wait for. Its memory is not reused before the copy is done.
  const at::Tensor staging = at::empty({memory_.numel()}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  std::memcpy(staging.mutable_data_ptr(), bytes.data(), bytes.size());
  memory_.copy_(staging, /*non_blocking=*/true);
}

// On a stream that is not captured: the table stays as it is however often the graph runs, and calls outside of the graph can
// use it. So neither memory nor copy may become a part of the graph, and the copy must be done when the graph first runs.
void DeviceTable::upload_beside_capture(const std::vector<std::byte>& bytes, c10::Device device) {
  const c10::cuda::CUDAStreamCaptureModeGuard allowed(cudaStreamCaptureModeRelaxed);
  home_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
  const c10::cuda::CUDAStreamGuard beside(home_);
  memory_ = bytes_on(device, bytes.size());
  C10_CUDA_CHECK(
      cudaMemcpyAsync(memory_.mutable_data_ptr(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, home_.stream()));
  C10_CUDA_CHECK(cudaStreamSynchronize(home_.stream()));
}

Table DeviceTable::ready_on(c10::cuda::CUDAStream stream) {
  if (is_capturing(stream)) {
    // A graph may not wait for an event of the world outside.
    const c10::cuda::CUDAStreamCaptureModeGuard allowed(cudaStreamCaptureModeRelaxed);
    uploaded_.synchronize();
  } else if (stream != home_) {
    uploaded_.block(stream);
    c10::cuda::CUDACachingAllocator::recordStream(memory_.storage().data_ptr(), stream);
  }
  return table_;
}

Table table_for_launch(const plan::Groups& plan, c10::cuda::CUDAStream stream) {
  using Tables = std::map<c10::Device, std::shared_ptr<DeviceTable>, bool (*)(c10::Device, c10::Device)>;
  const auto by_index = [](c10::Device a, c10::Device b) { return a.index() < b.index(); };
  if (plan->kept_by_driver == nullptr) plan->kept_by_driver = std::make_shared<Tables>(by_index);
  std::shared_ptr<DeviceTable>& table = (*std::static_pointer_cast<Tables>(plan->kept_by_driver))[stream.device()];
  if (table == nullptr) table = std::make_shared<DeviceTable>(*plan, stream.device());
  if (is_capturing(stream)) keep_with_graph(stream, table);
  return table->ready_on(stream);
}

}  // namespace apex::kernels::cuda
