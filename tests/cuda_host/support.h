#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <vector>

namespace cuda_host_test {

using Tensors = std::vector<at::Tensor>;

// A test on the fake devices. Its schedules depend on its name only. At the end all work has run, and no call of the runtime
// was made where it must not be.
class OnFakeDevice : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

 private:
  int64_t forbidden_before_ = 0;
};

template <class Param>
class OnFakeDeviceWith : public OnFakeDevice, public ::testing::WithParamInterface<Param> {};

const c10::Device kDevice{at::kCUDA, 1};

// The fake devices, which have different numbers of blocks; one of them if a sanitizer watches.
std::vector<c10::Device> devices();

// Whether a sanitizer watches the device code, so that tests must be small.
bool is_small();

// Copies with the tensors' offsets from a multiple of 64 bytes.
Tensors on(c10::Device device, const Tensors& tensors);
Tensors on_cpu(const Tensors& tensors);

}  // namespace cuda_host_test
