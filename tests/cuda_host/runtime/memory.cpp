#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "tests/cuda_host/runtime/control.h"
#include "tests/cuda_host/runtime/launch.h"
#include "tests/cuda_host/runtime/objects.h"

namespace cuda_host {
namespace {

constexpr size_t kAlignment = 512;
constexpr unsigned char kNew = 0xff;    // NaN in every type
constexpr unsigned char kFreed = 0xa5;  // what a use after the end may find

int current_device = 0;
int64_t waits = 0;

struct Allocation {
  size_t bytes;
  int device;
};

std::map<uintptr_t, Allocation>& allocations() {
  static auto* const all = new std::map<uintptr_t, Allocation>;
  return *all;
}

}  // namespace

void count_wait() { ++waits; }
int64_t host_waits() { return waits; }
int64_t allocated_blocks() { return static_cast<int64_t>(allocations().size()); }

int device_of(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = allocations().upper_bound(at);
  if (next == allocations().begin()) return -1;
  const auto& [begin, allocation] = *--next;
  return at < begin + allocation.bytes ? allocation.device : -1;
}

}  // namespace cuda_host

using namespace cuda_host;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (attribute != cudaDevAttrMultiProcessorCount) return fail(cudaErrorInvalidValue);
  *value = kMultiprocessors[device];
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->major = 8;
  properties->multiProcessorCount = kMultiprocessors[device];
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = kBlocksPerMultiprocessor;
  return cudaSuccess;
}

// Memory ends where the allocation ends, so that AddressSanitizer finds accesses behind it.
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (is_forbidden_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  if (posix_memalign(memory, kAlignment, bytes) != 0) return fail(cudaErrorMemoryAllocation);
  std::memset(*memory, kNew, bytes);
  allocations()[reinterpret_cast<uintptr_t>(*memory)] = {bytes, current_device};
  return cudaSuccess;
}

// As on a device, all work ends first.
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (is_forbidden_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  finish_all();
  const auto found = allocations().find(reinterpret_cast<uintptr_t>(memory));
  if (found == allocations().end()) return fail(cudaErrorInvalidValue);
  std::memset(memory, kFreed, found->second.bytes);
  allocations().erase(found);
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *available = *total = size_t{1} << 34;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (is_forbidden_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  count_wait();
  finish(stream_of(nullptr));
  if (bytes != 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

// Memory of the host may change once the call has returned: only pinned memory is read later, which tests/cuda_host/backend
// copies itself.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind != cudaMemcpyHostToDevice) return fail(cudaErrorInvalidMemcpyDirection);
  if (bytes == 0) return cudaSuccess;
  const auto* const begin = static_cast<const unsigned char*>(from);
  enqueue(stream,
          [to, staged = std::vector<unsigned char>(begin, begin + bytes)] { std::memcpy(to, staged.data(), staged.size()); });
  return cudaSuccess;
}

}  // extern "C"
