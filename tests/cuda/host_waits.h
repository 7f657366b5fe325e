#pragma once

#include <cstdint>

namespace cuda_test {

// How often the host has waited for a device: the number of calls of the CUDA runtime's blocking functions by this project,
// LibTorch or a test. The program defines these functions itself; its definitions shadow the runtime's and count calls.
int64_t host_waits();

}  // namespace cuda_test
