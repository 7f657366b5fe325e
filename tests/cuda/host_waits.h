#pragma once

#include <cstdint>

namespace cuda_test {

// How often the host has waited for a device: calls of the CUDA runtime's functions that wait, whoever makes them, this
// project's code, LibTorch or a test. The program's own definitions of these functions stand before the runtime's and count.
int64_t host_waits();

}  // namespace cuda_test
