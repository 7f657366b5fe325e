#pragma once

#include "kernels/cuda/table_image.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>

namespace apex::kernels::cuda {

// A table in device memory. It is uploaded on the current stream without the host waiting; during a graph capture the host
// waits.
class DeviceTable {
 public:
  DeviceTable(const plan::Plan& plan, c10::Device device);

  // The table for a launch on `stream`, which may be capturing.
  Table ready_on(c10::cuda::CUDAStream stream, bool with_scratch);

 private:
  void upload(const std::vector<std::byte>& bytes, c10::Device device);
  void upload_beside_capture(const std::vector<std::byte>& bytes, c10::Device device);
  void wait_on(c10::cuda::CUDAStream stream);
  void* scratch_for(c10::cuda::CUDAStream stream);

  TableImage image_;
  at::Tensor memory_;
  Scratch scratch_;
  c10::cuda::CUDAStream home_;  // the stream of the allocation and the upload
  c10::cuda::CUDAEvent uploaded_;
};

// The table of the plan's tensors on the stream's device. It is created at the first call and cached with the plan. A graph
// that captures it keeps it alive too. Without scratch it has neither sums nor tickets.
Table table_for_launch(const plan::Groups& plan, c10::cuda::CUDAStream stream, bool with_scratch);

// Whether the stream is being captured in a CUDA graph.
bool is_capturing(c10::cuda::CUDAStream stream);

// Keeps an object alive as long as the graph being captured on the stream, or anything instantiated from that graph.
void keep_with_graph(c10::cuda::CUDAStream stream, std::shared_ptr<const void> object);

}  // namespace apex::kernels::cuda
