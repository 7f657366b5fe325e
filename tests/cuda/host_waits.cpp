#include "tests/cuda/host_waits.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <iostream>

namespace cuda_test {
namespace {

std::atomic<int64_t> counted_waits{0};

// The runtime's function that one of these functions replaces.
template <class... Arguments>
cudaError_t count_and_call(const char* name, Arguments... arguments) {
  using Function = cudaError_t (*)(Arguments...);
  ++counted_waits;
  const auto function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  if (function != nullptr) return function(arguments...);
  std::cerr << "host_waits: there is no " << name << " in the CUDA runtime that this program is linked to\n";
  std::abort();
}

}  // namespace

int64_t host_waits() { return counted_waits; }

}  // namespace cuda_test

extern "C" {

cudaError_t cudaDeviceSynchronize() { return cuda_test::count_and_call("cudaDeviceSynchronize"); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cuda_test::count_and_call("cudaStreamSynchronize", stream); }

cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cuda_test::count_and_call("cudaEventSynchronize", event); }

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cuda_test::count_and_call("cudaMemcpy", to, from, bytes, kind);
}

}  // extern "C"
