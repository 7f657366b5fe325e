// CUDA graphs of a step: a replay equals an eager step bit for bit, and reads the values on the device each time.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <cmath>
#include <functional>

#include "tests/cuda/support.h"

namespace cuda_test {
namespace {

namespace kernels = apex::kernels;
using kernels_test::same_bytes;

// Adam at O2 with everything that changes between steps on the device.
struct Step {
  explicit Step(c10::Device device)
      : scale(at::full({1}, 0.5f, options(device, at::kFloat))), loss_scale{scale, zeros(device), zeros(device)} {
    for (const int64_t size : {0, 1, 33, 70001}) {
      grads.push_back(at::linspace(-1, 2, size, options(device, at::kHalf)));
      params.push_back(at::linspace(1, 3, size, options(device, at::kFloat)));
      means.push_back(at::zeros({size}, options(device, at::kFloat)));
      squares.push_back(at::zeros({size}, options(device, at::kFloat)));
      models.push_back(at::zeros({size}, options(device, at::kHalf)));
    }
    tensors.found_inf = zeros(device);
    tensors.step = zeros(device);
    tensors.lr = at::full({1}, 0.1f, options(device, at::kFloat));
    tensors.grad_scale = scale;
  }

  static at::TensorOptions options(c10::Device device, at::ScalarType dtype) {
    return at::TensorOptions().device(device).dtype(dtype);
  }
  static at::Tensor zeros(c10::Device device) { return at::zeros({1}, options(device, at::kInt)); }

  // Both passes and the update of the loss scale.
  void run() {
    tensors.found_inf.zero_();
    kernels::multi_tensor_unscale_l2norm(tensors.found_inf, grads, scale, false);
    kernels::multi_tensor_adam(grads, params, means, squares, models, {}, tensors);
    kernels::update_scale_hysteresis(loss_scale, tensors.found_inf, {});
  }

  // The host's work between steps: a new learning rate, and sometimes an overflow.
  void prepare(int number) {
    tensors.lr.fill_(0.1 / (number + 1));
    grads[3].mul_(0.75);
    grads[3][70000] = number == 2 ? INFINITY : 0.5;
  }

  Tensors all() const {
    Tensors everything = {scale, loss_scale.growth_tracker, loss_scale.hysteresis_tracker, tensors.step, tensors.found_inf};
    for (const Tensors& list : {grads, params, means, squares, models}) {
      for (const at::Tensor& tensor : list) everything.push_back(tensor.cpu());
    }
    for (at::Tensor& tensor : everything) tensor = tensor.cpu();
    return everything;
  }

  kernels::StepTensors tensors;
  at::Tensor scale;
  kernels::LossScaleTensors loss_scale;
  Tensors grads, params, means, squares, models;
};

void expect_replay_to_equal_eager(at::cuda::CUDAGraph& graph, Step& captured, Step& eager) {
  for (int number = 0; number < 5; ++number) {
    captured.prepare(number);
    graph.replay();
    eager.prepare(number);
    eager.run();
    ASSERT_TRUE(same_bytes(captured.all(), eager.all())) << "step " << number;
  }
  EXPECT_EQ(captured.tensors.step.item<int>(), 4) << "one of five overflowed";
}

class Graphs : public OnGpu {};

TEST_F(Graphs, OfAStepReplayEagerSteps) {
  Step captured(at::kCUDA), eager(at::kCUDA);
  at::cuda::CUDAGraph graph;
  // No earlier call has made the tables, so they are made during the capture.
  capture(graph, [&] { captured.run(); });
  expect_replay_to_equal_eager(graph, captured, eager);
}

TEST_F(Graphs, OfAStepThatRanBeforeReplayEagerSteps) {
  Step captured(at::kCUDA), eager(at::kCUDA);
  captured.run();
  eager.run();
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { captured.run(); });
  for (int number = 0; number < 3; ++number) {
    captured.prepare(number);
    graph.replay();
    eager.prepare(number);
    eager.run();
    EXPECT_TRUE(same_bytes(captured.all(), eager.all())) << number;
  }
}

TEST_F(Graphs, HaveTheBitsOfTheCpu) {
  Step captured(at::kCUDA), eager(at::kCPU);
  for (size_t i = 0; i < captured.grads.size(); ++i) {
    captured.grads[i].copy_(eager.grads[i]);
    captured.params[i].copy_(eager.params[i]);
  }
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { captured.run(); });
  expect_replay_to_equal_eager(graph, captured, eager);
}

// Tables belong to a thread's last few calls: others push them out, and take the memory that they leave.
TEST_F(Graphs, OutliveThePlansTheyWereMadeFrom) {
  Step captured(at::kCUDA), eager(at::kCUDA);
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { captured.run(); });
  for (int i = 1; i < 100; ++i) {
    const Tensors list = {at::ones({i}, at::kCUDA)};
    kernels::multi_tensor_scale(clear_flag_on_gpu(), list, list, 2);
  }
  expect_replay_to_equal_eager(graph, captured, eager);
}

TEST_F(Graphs, DoNotKeepTablesFromLaterCalls) {
  Step step(at::kCUDA), expected(at::kCUDA);
  {
    at::cuda::CUDAGraph graph;
    capture(graph, [&] { step.run(); });
  }
  step.run();
  expected.run();
  EXPECT_TRUE(same_bytes(step.all(), expected.all()));
}

}  // namespace
}  // namespace cuda_test
