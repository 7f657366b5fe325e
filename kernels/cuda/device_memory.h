#pragma once

#include "kernels/cuda/table_image.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <unordered_map>

namespace apex::kernels::cuda {

// The memory that launches over one table work in: sums and tickets. Launches on one stream follow one another and share it.
// Those on another may run at the same time, and so may graphs, which run on whatever stream they are launched on: each
// captured launch has memory of its own.
class Scratch {
 public:
  // make() for a captured launch, and for the first of each stream.
  template <class Make>
  at::Tensor of_launch(int64_t stream, bool captured, const Make& make) {
    if (captured) return make();
    at::Tensor& kept = by_stream_[stream];
    if (!kept.defined()) kept = make();
    return kept;
  }

 private:
  std::unordered_map<int64_t, at::Tensor> by_stream_;
};

// A table in memory of a device. Its user is the current stream: the host waits for nothing, unless a CUDA graph is captured.
class DeviceTable {
 public:
  DeviceTable(const plan::Plan& plan, c10::Device device);

  // Makes the table ready for a launch on the device's current stream, in which it may also be captured.
  Table ready_on(c10::cuda::CUDAStream stream, bool with_scratch);

 private:
  void upload(const std::vector<std::byte>& bytes, c10::Device device);
  void upload_beside_capture(const std::vector<std::byte>& bytes, c10::Device device);
  void wait_on(c10::cuda::CUDAStream stream);
  void* scratch_for(c10::cuda::CUDAStream stream);

  TableImage image_;
  at::Tensor memory_;
  Scratch scratch_;
  c10::cuda::CUDAStream home_;  // memory and upload belong to it
  c10::cuda::CUDAEvent uploaded_;
};

// The table of the plan's tensors on `device`, which is made at the first call and kept with the plan. A graph that it is
// captured in keeps it alive, too. Without scratch it has neither sums nor tickets.
Table table_for_launch(const plan::Groups& plan, c10::cuda::CUDAStream stream, bool with_scratch);

// Whether work on the stream becomes a part of a CUDA graph.
bool is_capturing(c10::cuda::CUDAStream stream);

// Keeps an object alive as long as the graph that the stream is captured in, or anything made from that graph.
void keep_with_graph(c10::cuda::CUDAStream stream, std::shared_ptr<const void> object);

// Frees what was kept with graphs that are gone: their end is told where CUDA must not be called.
void free_released();

}  // namespace apex::kernels::cuda
