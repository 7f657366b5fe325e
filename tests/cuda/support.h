#pragma once

#include <ATen/cuda/CUDAGraph.h>

#include <functional>

#include "tests/kernels/optimizer_cases.h"

namespace cuda_test {

using kernels_test::Problem;
using kernels_test::Tensors;

// A test that is skipped without a GPU.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override;
};

// A test that is skipped with fewer than two GPUs.
class OnTwoGpus : public ::testing::Test {
 protected:
  void SetUp() override;
};

template <class Param>
class OnGpuWith : public OnGpu, public ::testing::WithParamInterface<Param> {};

Tensors on_gpu(const Tensors& tensors);
Tensors on_cpu(const Tensors& tensors);  // copies
Problem on_gpu(const Problem& problem);
at::Tensor clear_flag_on_gpu();

// Captures `work` on a separate stream.
void capture(at::cuda::CUDAGraph& graph, const std::function<void()>& work);

// While it lives, LibTorch's calls that wait for the device throw. For other calls see host_waits.h.
class NoWaiting {
 public:
  NoWaiting();
  ~NoWaiting();
  NoWaiting(const NoWaiting&) = delete;
  NoWaiting& operator=(const NoWaiting&) = delete;
};

}  // namespace cuda_test
