#pragma once

#include <c10/core/Device.h>

namespace apex::kernels {

// Whether work on the device's current stream becomes a part of a CUDA graph now, to be run when the graph is. Never on a
// device that is no CUDA device, nor in a library without CUDA.
bool is_captured(c10::Device device);

}  // namespace apex::kernels
