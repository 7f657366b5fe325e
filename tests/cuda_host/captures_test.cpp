// The memory that graphs use: it lives as long as anything that needs it, and no longer. More of graphs:
// tests/cuda/graphs_test.cpp, which runs here too.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <memory>

#include "tests/cuda/support.h"
#include "tests/cuda_host/runtime/control.h"
#include "tests/cuda_host/support.h"
#include "tests/kernels/support.h"

namespace cuda_host_test {
namespace {

namespace kernels = apex::kernels;
using kernels_test::clear_flag;
using kernels_test::random_values;
using kernels_test::same_bits;

class Captures : public OnFakeDevice {
 protected:
  const Tensors in = {random_values(70001, at::kHalf), random_values(33, at::kHalf)};
  const at::Tensor expected = std::get<0>(kernels::multi_tensor_l2norm(clear_flag(), in, false));
  const Tensors there = on(at::kCUDA, in);
  const at::Tensor flag = clear_flag().to(at::kCUDA);

  at::Tensor norm() const { return std::get<0>(kernels::multi_tensor_l2norm(flag, there, false)); }

  at::Tensor captured_norm(at::cuda::CUDAGraph& graph) const {
    at::Tensor result;
    cuda_test::capture(graph, [&] { result = norm(); });
    return result;
  }

  // Pushes all plans out of the thread's plans, and gives free memory back, which is overwritten.
  static void forget_plans() {
    cuda_host::finish_device();  // replays that have not run keep their graph
    for (int64_t i = 1; i < 100; ++i) {
      const Tensors list = {at::ones({i}, at::kCUDA)};
      kernels::multi_tensor_copy(list, list);
    }
    cuda_host::finish_device();
    c10::cuda::CUDACachingAllocator::emptyCache();
  }
};

TEST_F(Captures, ReplayWithoutAWait) {
  at::cuda::CUDAGraph graph;
  const at::Tensor result = captured_norm(graph);
  const int64_t waits = cuda_host::host_waits(), launches = cuda_host::launches();
  for (int i = 0; i < 3; ++i) graph.replay();
  EXPECT_EQ(cuda_host::host_waits(), waits);
  EXPECT_EQ(cuda_host::launches(), launches) << "counted when they were captured";
  EXPECT_TRUE(same_bits(result.cpu(), expected));
}

// A launch before the capture leaves the table to be used, not to be made.
TEST_F(Captures, UseTheTableOfEarlierLaunches) {
  EXPECT_TRUE(same_bits(norm().cpu(), expected));
  at::cuda::CUDAGraph graph;
  const at::Tensor result = captured_norm(graph);
  graph.replay();
  EXPECT_TRUE(same_bits(result.cpu(), expected));
}

TEST_F(Captures, KeepTheirTables) {
  at::cuda::CUDAGraph graph;
  const at::Tensor result = captured_norm(graph);
  forget_plans();
  graph.replay();
  EXPECT_TRUE(same_bits(result.cpu(), expected));
}

TEST_F(Captures, LeaveTheirTablesToLaterLaunches) {
  {
    at::cuda::CUDAGraph graph;
    captured_norm(graph);
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
  EXPECT_TRUE(same_bits(norm().cpu(), expected));
}

TEST_F(Captures, GiveAllMemoryBack) {
  const auto blocks_after = [&](const auto& work) {
    work();
    forget_plans();
    return cuda_host::allocated_blocks();
  };
  const int64_t before = blocks_after([] {});
  const int64_t after = blocks_after([&] {
    at::cuda::CUDAGraph graph;
    captured_norm(graph);
    graph.replay();
  });
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace cuda_host_test
