// The control's tensors are on the device of the updated tensors. The meta device stands in for a second device.
#include <apex_cpp/optimizers/detail/fused_step.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace test {
namespace {

namespace detail = apex::optimizers::detail;
namespace kernels = apex::kernels;

TEST(PlacedControl, HasItsTensorsOnTheDevice) {
  kernels::AdamControl control;
  control.found_inf = at::zeros({1}, at::kInt);
  control.grad_scale_tensor = at::ones({1});
  control.lr_tensor = at::ones({1});
  control.step_tensor = at::zeros({1}, at::kInt);
  detail::place_control(at::kMeta, control);
  for (const at::Tensor& tensor : {control.found_inf, control.grad_scale_tensor, control.lr_tensor}) {
    EXPECT_TRUE(tensor.is_meta());
  }
  EXPECT_EQ(control.found_inf.scalar_type(), at::kInt);
}

// The only kernel of a step counts it, unless it runs on another device than the count is on.
TEST(PlacedControl, HasTheStepCountOrItsCopy) {
  kernels::AdamControl control;
  control.step_tensor = at::full({1}, 5, at::kInt);
  const at::Tensor count = control.step_tensor;
  EXPECT_TRUE(detail::can_count(at::kCPU, count));
  EXPECT_FALSE(detail::can_count(at::kMeta, count));
  EXPECT_TRUE(detail::can_count(at::kMeta, at::Tensor()));
  detail::place_control(at::kCPU, /*counts=*/true, control);
  EXPECT_TRUE(control.step_tensor.is_same(count));
  kernels::AdamControl elsewhere = control, beside_others = control;
  detail::place_control(at::kMeta, /*counts=*/false, elsewhere);
  EXPECT_TRUE(elsewhere.step_tensor.is_meta());
  detail::place_control(at::kCPU, /*counts=*/false, beside_others);
  beside_others.step_tensor.add_(1);
  EXPECT_EQ(count.item<int>(), 5) << "the others start from it, too";
}

TEST(PlacedControl, KeepsPresentAndAbsentTensors) {
  kernels::SgdControl control;
  control.found_inf = at::zeros({1}, at::kInt);
  const at::Tensor flag = control.found_inf;
  detail::place_control(at::kCPU, control);
  EXPECT_TRUE(control.found_inf.is_same(flag)) << "a kernel that raises it is heard";
  EXPECT_FALSE(control.grad_scale_tensor.defined());
  EXPECT_FALSE(control.lr_tensor.defined());
}

}  // namespace
}  // namespace test
