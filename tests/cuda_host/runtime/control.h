#pragma once

#include <cstddef>
#include <cstdint>

// How tests look into the fake runtime.
namespace cuda_host {

// The devices differ in their number of multiprocessors, and thereby in the number of blocks of a launch.
constexpr int kDevices = 3;
constexpr int kMultiprocessors[kDevices] = {1, 2, 5};
constexpr int kBlocksPerMultiprocessor = 2;

int64_t launches();    // kernels, since the program began
int64_t host_waits();  // calls for which the host waits
// Calls of the runtime in callbacks that must not call it, and calls that a capture does not allow.
int64_t forbidden_calls();

int64_t allocated_blocks();          // of device memory, now
int device_of(const void* address);  // -1 if it is no device memory

// Runs all work of all streams, which is no wait of the host.
void finish_device();

}  // namespace cuda_host
