// The sign that Lion takes, in every vector type: against ATen's, on the values at which an instruction could go wrong.
#include <gtest/gtest.h>

#include "tests/kernels/host_grid.h"
#include "tests/kernels/support.h"

#include "kernels/optimizers.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;

// Zeros, subnormal, normal and infinite values and NaN: every float16 or bfloat16, and random float32.
at::Tensor values_of(at::ScalarType dtype) {
  if (dtype != at::kFloat) return at::arange(65536, at::kInt).to(at::kShort).view(dtype);
  return at::randint(INT32_MIN, INT32_MAX, {1 << 17}, at::kLong).to(at::kInt).view(at::kFloat);
}

// With beta1 of 0, a mean of 0 with the gradient's sign, a rate of 1 and a parameter of -0, a step leaves -sign(gradient). A
// sign of -0 would leave +0.
Tensors stepped(const at::Tensor& grads, at::ScalarType others) {
  kernels::LionSettings settings;
  settings.lr = 1;
  settings.beta1 = 0;
  const Tensors params = {at::full({grads.numel()}, -0.0, others)};
  const Tensors means = {at::zeros({grads.numel()}, others).copysign(grads.to(others))};
  kernels::multi_tensor_lion(Tensors{grads}, params, means, {}, settings);
  return params;
}

at::Tensor expected_params(const at::Tensor& grads, at::ScalarType dtype) {
  const at::Tensor signs = at::where(grads.eq(0), at::zeros({}, grads.options()), grads.sign()).neg();
  return at::where(grads.isnan(), at::full({}, NAN, signs.options()), signs).to(dtype);
}

class Sign : public ::testing::TestWithParam<std::tuple<at::ScalarType, at::ScalarType>> {};

TEST_P(Sign, IsThatOfAten) {
  const auto [dtype, others] = GetParam();
  const at::Tensor grads = values_of(dtype);
  const Tensors expected = {expected_params(grads, others)};
  for (const auto isa : available_isas()) {
    const UseIsa use(isa);
    EXPECT_TRUE(same_bits(stepped(grads, others), expected)) << kernels::cpu::name_of(isa);
  }
  const OnHostGrid grid;
  EXPECT_TRUE(same_bits(stepped(grads, others), expected)) << "kernels";
}

INSTANTIATE_TEST_SUITE_P(Mixes, Sign,
                         ::testing::Combine(::testing::Values(at::kHalf, at::kBFloat16, at::kFloat),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         param_name<Sign::ParamType>);

}  // namespace
}  // namespace kernels_test
