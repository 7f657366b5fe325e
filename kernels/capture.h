#pragma once

#include <c10/core/Device.h>

namespace apex::kernels {

// Whether the device's current stream is being captured in a CUDA graph. False for other devices, and in a library without
// CUDA.
bool is_captured(c10::Device device);

}  // namespace apex::kernels
