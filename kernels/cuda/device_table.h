#pragma once

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/scratch.h"
#include "kernels/cuda/table_image.h"

namespace apex::kernels::cuda {

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

}  // namespace apex::kernels::cuda
