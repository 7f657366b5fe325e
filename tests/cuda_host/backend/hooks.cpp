// What LibTorch asks of libtorch_cuda besides operators.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <set>

#include "tests/cuda_host/backend/backend.h"
#include "tests/cuda_host/runtime/control.h"

// libc10_cuda exports it for libtorch_cuda; no header declares it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));
}  // namespace c10::cuda::_internal

namespace cuda_host {
namespace {

std::set<const void*>& pinned_memory() {
  static auto* const all = new std::set<const void*>;
  return *all;
}

void free_pinned(void* memory) {
  pinned_memory().erase(memory);
  c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    pinned_memory().insert(memory);
    return {memory, memory, free_pinned, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// As in libtorch_cuda, before the first call of LibTorch.
[[maybe_unused]] const bool is_prepared = [] {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  return true;
}();

}  // namespace

bool is_pinned(const void* address) { return pinned_memory().count(address) != 0; }

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}

  void init() const override { c10::cuda::CUDACachingAllocator::init(kDevices); }
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  int getNumGPUs() const override { return kDevices; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex current_device() const override { return c10::cuda::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::cuda::current_device(); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator allocator;
    return &allocator;
  }
  c10::Device getDeviceFromPtr(void* address) const override {
    const int device = device_of(address);
    TORCH_CHECK(device >= 0, "this is no device memory");
    return {at::kCUDA, static_cast<c10::DeviceIndex>(device)};
  }
};

}  // namespace cuda_host

// In namespace at, where LibTorch looks for the name "CUDAHooks".
namespace at {
using CUDAHooks = ::cuda_host::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
