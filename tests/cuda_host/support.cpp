#include "tests/cuda_host/support.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <functional>
#include <string>

#include "tests/cuda_host/layer/grid.h"
#include "tests/cuda_host/runtime/control.h"
#include "tests/cuda_host/sanitizers.h"

namespace cuda_host_test {

void OnFakeDevice::SetUp() {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  uint64_t seed = 0;
  for (const char letter : std::string(test->test_suite_name()) + test->name())
    seed = seed * 31 + static_cast<uint64_t>(letter);
  cuda_host::seed_schedules(seed);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(seed);
  forbidden_before_ = cuda_host::forbidden_calls();
}

void OnFakeDevice::TearDown() {
  cuda_host::finish_device();
  EXPECT_EQ(cuda_host::forbidden_calls(), forbidden_before_);
}

bool is_small() { return cuda_host::sanitizer() != cuda_host::Sanitizer::none; }

std::vector<c10::Device> devices() {
  if (is_small()) return {kDevice};
  std::vector<c10::Device> all;
  for (int i = 0; i < cuda_host::kDevices; ++i) all.emplace_back(at::kCUDA, static_cast<c10::DeviceIndex>(i));
  return all;
}

Tensors on(c10::Device device, const Tensors& tensors) {
  Tensors moved;
  for (const at::Tensor& tensor : tensors) {
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64 / tensor.element_size());
    const at::Tensor memory = at::empty({tensor.numel() + offset}, tensor.options().device(device));
    moved.push_back(memory.narrow(0, offset, tensor.numel()).view_as(tensor).copy_(tensor));
  }
  return moved;
}

Tensors on_cpu(const Tensors& tensors) {
  Tensors moved;
  for (const at::Tensor& tensor : tensors) moved.push_back(tensor.cpu());
  return moved;
}

}  // namespace cuda_host_test
