// Step tensors are moved to the device of the parameters that a kernel updates. The meta device stands for a second device.
#include <apex_cpp/optimizers/detail/fused_step.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace test {
namespace {

namespace detail = apex::optimizers::detail;
namespace kernels = apex::kernels;

TEST(PlacedTensors, AreOnTheDevice) {
  kernels::StepTensors tensors;
  tensors.found_inf = at::zeros({1}, at::kInt);
  tensors.grad_scale = at::ones({1});
  tensors.lr = at::ones({1});
  const auto placed = detail::placed_on(at::kMeta, tensors);
  for (const at::Tensor& tensor : {placed.found_inf, placed.grad_scale, placed.lr}) EXPECT_TRUE(tensor.is_meta());
  EXPECT_EQ(placed.found_inf.scalar_type(), at::kInt);
}

// If a step has a single kernel, it advances the step count itself, unless the count is on another device.
TEST(PlacedTensors, HaveTheStepCountOrACopy) {
  kernels::StepTensors tensors;
  const at::Tensor count = tensors.step = at::full({1}, 5, at::kInt);
  EXPECT_TRUE(detail::can_count(at::kCPU, count));
  EXPECT_FALSE(detail::can_count(at::kMeta, count));
  EXPECT_TRUE(detail::can_count(at::kMeta, at::Tensor()));
  EXPECT_TRUE(detail::placed_on(at::kCPU, tensors, /*counts=*/true).step.is_same(count));
  EXPECT_TRUE(detail::placed_on(at::kMeta, tensors, /*counts=*/false).step.is_meta());
  detail::placed_on(at::kCPU, tensors, /*counts=*/false).step.add_(1);
  EXPECT_EQ(count.item<int>(), 5) << "other kernels start from it, too";
}

TEST(PlacedTensors, StayTheSameOnTheirOwnDeviceAndUndefined) {
  kernels::StepTensors tensors;
  tensors.found_inf = at::zeros({1}, at::kInt);
  const auto placed = detail::placed_on(at::kCPU, tensors);
  EXPECT_TRUE(placed.found_inf.is_same(tensors.found_inf)) << "a kernel may raise it";
  EXPECT_FALSE(placed.grad_scale.defined());
  EXPECT_FALSE(placed.lr.defined());
}

}  // namespace
}  // namespace test
