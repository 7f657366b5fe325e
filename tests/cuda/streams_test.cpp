// Concurrent launches on several streams and in graphs. Each has its own sums and tickets.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "tests/cuda/support.h"

namespace cuda_test {
namespace {

namespace kernels = apex::kernels;
using kernels_test::clear_flag;
using kernels_test::random_values;
using kernels_test::same_bits;

// Large enough that launches overlap.
Tensors large_list() { return {random_values(int64_t{40} << 20, at::kHalf), random_values(1023, at::kHalf)}; }

at::Tensor norm_of(const Tensors& in) { return std::get<0>(kernels::multi_tensor_l2norm(clear_flag_on_gpu(), in, false)); }

class Streams : public OnGpu {};

TEST_F(Streams, ComputeNormsOfTheSameTensorsConcurrently) {
  const Tensors in = large_list(), there = on_gpu(in);
  const auto [expected, each] = kernels::multi_tensor_l2norm(clear_flag(), in, false);
  c10::cuda::device_synchronize();
  Tensors norms;
  for (int i = 0; i < 32; ++i) {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    norms.push_back(norm_of(there));
  }
  c10::cuda::device_synchronize();
  for (const at::Tensor& norm : norms) EXPECT_TRUE(same_bits(norm.cpu(), expected));
}

TEST_F(Streams, WorkConcurrentlyWithAGraphOverTheSameTensors) {
  const Tensors in = large_list(), there = on_gpu(in);
  const auto [expected, each] = kernels::multi_tensor_l2norm(clear_flag(), in, false);
  norm_of(there);
  at::Tensor captured;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { captured = norm_of(there); });
  const auto beside = c10::cuda::getStreamFromPool();
  for (int i = 0; i < 8; ++i) {
    graph.replay();
    const c10::cuda::CUDAStreamGuard guard(beside);
    EXPECT_TRUE(same_bits(norm_of(there).cpu(), expected)) << i;
  }
  c10::cuda::device_synchronize();
  EXPECT_TRUE(same_bits(captured.cpu(), expected));
}

// The pool hands its streams out in turn: the next one after all the others is the one that is captured.
TEST_F(Streams, FromThePoolDoNotReuseAGraphsTable) {
  constexpr int kPool = 32;
  const Tensors in = {at::ones({70001})}, there = on_gpu(in);
  c10::cuda::device_synchronize();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  for (int i = 1; i < kPool; ++i) c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const at::Tensor norm = norm_of(there);
  graph.capture_end();
  graph.replay();
  EXPECT_TRUE(same_bits(norm.cpu(), std::get<0>(kernels::multi_tensor_l2norm(clear_flag(), in, false))));
}

}  // namespace
}  // namespace cuda_test
