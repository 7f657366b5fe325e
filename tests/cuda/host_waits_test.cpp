// The counter of host waits. It needs the CUDA runtime but no GPU: calls that fail are counted too.
#include "tests/cuda/host_waits.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace cuda_test {
namespace {

TEST(HostWaits, InOurCodeAreCounted) {
  const int64_t before = host_waits();
  (void)cudaDeviceSynchronize();
  (void)cudaStreamSynchronize(nullptr);
  (void)cudaEventSynchronize(nullptr);
  (void)cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToHost);
  EXPECT_EQ(host_waits() - before, 4);
  (void)cudaGetLastError();  // clears the error for the next test
}

TEST(HostWaits, InLibTorchAreCounted) {
  const int64_t before = host_waits();
  try {
    c10::cuda::device_synchronize();
  } catch (const c10::Error&) {
    // without a GPU
  }
  EXPECT_EQ(host_waits() - before, 1);
}

TEST(HostWaits, AreZeroWithoutAWait) {
  const int64_t before = host_waits();
  int devices = 0;
  (void)cudaGetDeviceCount(&devices);
  (void)cudaGetLastError();
  EXPECT_EQ(host_waits(), before);
}

}  // namespace
}  // namespace cuda_test
