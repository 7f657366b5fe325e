// The drivers on several streams: the fake runtime delays each stream until something waits for it.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

#include "tests/cuda_host/runtime/control.h"
#include "tests/cuda_host/support.h"
#include "tests/kernels/support.h"

namespace cuda_host_test {
namespace {

namespace kernels = apex::kernels;
using kernels_test::clear_flag;
using kernels_test::random_values;
using kernels_test::same_bits;

class HostStreams : public OnFakeDevice {
 protected:
  const Tensors in = {random_values(70001, at::kHalf), random_values(1023, at::kHalf)};
  const at::Tensor expected = std::get<0>(kernels::multi_tensor_l2norm(clear_flag(), in, false));

  static at::Tensor norm_of(const Tensors& tensors) {
    return std::get<0>(kernels::multi_tensor_l2norm(clear_flag().to(tensors[0].device()), tensors, false));
  }
};

// The first stream makes the table and uploads it; the others must wait for the upload, and each has its own sums.
TEST_F(HostStreams, ComputeNormsOfTheSameTensors) {
  for (const c10::Device device : devices()) {
    const Tensors there = on(device, in);
    cuda_host::finish_device();
    Tensors norms;
    std::vector<c10::cuda::CUDAStream> streams;
    for (int i = 0; i < 6; ++i) {
      streams.push_back(c10::cuda::getStreamFromPool(false, device.index()));
      const c10::cuda::CUDAStreamGuard guard(streams.back());
      norms.push_back(norm_of(there));
    }
    cuda_host::finish_device();
    for (const at::Tensor& norm : norms) EXPECT_TRUE(same_bits(norm.cpu(), expected));
  }
}

// Memory of the table goes back to the allocator while other streams may still read it.
TEST_F(HostStreams, OutliveTheTableOfAPlan) {
  const c10::Device device = kDevice;
  const Tensors there = on(device, in);
  cuda_host::finish_device();
  at::Tensor norm;
  norm_of(there);
  const auto stream = c10::cuda::getStreamFromPool(false, device.index());
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    norm = norm_of(there);
  }
  // Push the plan out of the thread's plans, and take the memory that its table leaves.
  for (int64_t i = 1; i < 100; ++i) {
    const Tensors list = {at::ones({i}, at::TensorOptions().device(device))};
    kernels::multi_tensor_scale(clear_flag().to(device), list, list, 2);
  }
  stream.synchronize();
  EXPECT_TRUE(same_bits(norm.cpu(), expected));
}

}  // namespace
}  // namespace cuda_host_test
