#include "kernels/capture.h"

#ifdef APEX_CPP_HAS_CUDA
#include "kernels/cuda/device_memory.h"
#endif

namespace apex::kernels {

#ifdef APEX_CPP_HAS_CUDA
bool is_captured(c10::Device device) {
  return device.is_cuda() && cuda::is_capturing(c10::cuda::getCurrentCUDAStream(device.index()));
}
#else
bool is_captured(c10::Device) { return false; }
#endif

}  // namespace apex::kernels
