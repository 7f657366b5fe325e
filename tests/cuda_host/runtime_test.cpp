// The fake runtime itself: the order of streams, and what a capture refuses.
#include "tests/cuda_host/runtime/control.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/cuda_host/layer/grid.h"
#include "tests/cuda_host/runtime/launch.h"

namespace cuda_host_test {
namespace {

class FakeRuntime : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_host::seed_schedules(3);
    for (cudaStream_t* stream : {&first_, &second_}) ASSERT_EQ(cudaStreamCreateWithFlags(stream, 0), cudaSuccess);
  }
  void TearDown() override {
    for (cudaStream_t stream : {first_, second_}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    (void)cudaGetLastError();
  }

  cudaError_t end_capture() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(first_, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    return error;
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
};

TEST_F(FakeRuntime, RunsWorkOnlyWhenSomethingWaits) {
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) cuda_host::enqueue(first_, [&order, i] { order.push_back(i); });
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(cudaStreamQuery(second_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST_F(FakeRuntime, OrdersStreamsByEventsOnly) {
  std::vector<char> order;
  bool reordered = false;
  for (int i = 0; i < 40; ++i) {
    order.clear();
    cuda_host::enqueue(first_, [&] { order.push_back('a'); });
    cuda_host::enqueue(second_, [&] { order.push_back('b'); });
    EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    reordered |= order[0] == 'b';
  }
  EXPECT_TRUE(reordered);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  for (int i = 0; i < 40; ++i) {
    order.clear();
    cuda_host::enqueue(first_, [&] { order.push_back('a'); });
    EXPECT_EQ(cudaEventRecord(event, first_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(second_, event, 0), cudaSuccess);
    cuda_host::enqueue(second_, [&] { order.push_back('b'); });
    EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
    EXPECT_EQ(order, (std::vector<char>{'a', 'b'}));
  }
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(FakeRuntime, RefusesWaitsAndAllocationsInACapture) {
  void* memory = nullptr;
  const auto refuses = [&](const auto& call) {
    const int64_t before = cuda_host::forbidden_calls();
    EXPECT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cuda_host::forbidden_calls(), before + 1);
    EXPECT_EQ(end_capture(), cudaErrorStreamCaptureInvalidated);
  };
  refuses([&] { return cudaStreamSynchronize(first_); });
  refuses([&] { return cudaStreamSynchronize(second_); });
  refuses([&] { return cudaDeviceSynchronize(); });
  refuses([&] { return cudaMalloc(&memory, 16); });
}

TEST_F(FakeRuntime, AllowsThemForOtherStreamsInTheRelaxedMode) {
  EXPECT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeGlobal), cudaSuccess);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(end_capture(), cudaSuccess);
}

TEST_F(FakeRuntime, RefusesAnEventFromOutsideOfACapture) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, second_), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(first_, event, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end_capture(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

void call_the_runtime(void* called) {
  *static_cast<bool*>(called) = true;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
}

TEST_F(FakeRuntime, DestroysUserObjectsAfterTheLastReplayAndNoticesCallsThere) {
  bool destroyed = false;
  int runs = 0;
  EXPECT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeGlobal), cudaSuccess);
  cuda_host::enqueue(first_, [&] { ++runs; });
  cudaUserObject_t object = nullptr;
  EXPECT_EQ(cudaUserObjectCreate(&object, &destroyed, call_the_runtime, 1, cudaUserObjectNoDestructorSync), cudaSuccess);
  cudaStreamCaptureStatus status{};
  cudaGraph_t capture = nullptr, graph = nullptr;
  EXPECT_EQ(cudaStreamGetCaptureInfo(first_, &status, nullptr, &capture, nullptr, nullptr, nullptr), cudaSuccess);
  EXPECT_EQ(cudaGraphRetainUserObject(capture, object, 1, cudaGraphUserObjectMove), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, second_), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_FALSE(destroyed);
  EXPECT_EQ(runs, 0);
  const int64_t forbidden = cuda_host::forbidden_calls();
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(destroyed);
  EXPECT_EQ(cuda_host::forbidden_calls(), forbidden + 1);
}

TEST_F(FakeRuntime, KnowsItsMemory) {
  void* memory = nullptr;
  const int64_t blocks = cuda_host::allocated_blocks();
  EXPECT_EQ(cudaSetDevice(2), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 100), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cuda_host::allocated_blocks(), blocks + 1);
  EXPECT_EQ(cuda_host::device_of(static_cast<char*>(memory) + 99), 2);
  EXPECT_EQ(cuda_host::device_of(&memory), -1);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cuda_host::allocated_blocks(), blocks);
}

}  // namespace
}  // namespace cuda_host_test
