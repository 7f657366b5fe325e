#include "support.h"

namespace {

using namespace amp_C_test;

constexpr float kDecay = 0.0625f, kInvScale = 0.3f;

struct AdamCase {
  at::ScalarType dtype;
  int mode, correction;
};

std::string name_of(const testing::TestParamInfo<AdamCase>& test) {
  return std::string(toString(test.param.dtype)) + (test.param.mode ? "_adamw" : "_l2") +
         (test.param.correction ? "_corrected" : "_uncorrected");
}

// The lists after a step, in float64.
struct ExpectedAdam {
  Tensors params, means, squares;
};

ExpectedAdam reference(const AdamCase& c, const Tensors& grads, const Tensors& params, const Tensors& means,
                       const Tensors& squares, double inv_scale) {
  ExpectedAdam after = {as_double(params), as_double(means), as_double(squares)};
  const double b1 = kBeta1, b2 = kBeta2;
  const double c1 = c.correction ? 1 - std::pow(b1, kStep) : 1, c2 = c.correction ? 1 - std::pow(b2, kStep) : 1;
  for (size_t i = 0; i < params.size(); ++i) {
    at::Tensor& p = after.params[i];
    at::Tensor g = grads[i].to(at::kDouble) * inv_scale;
    if (c.mode == 0) g = g + kDecay * p;
    after.means[i] = b1 * after.means[i] + (1 - b1) * g;
    after.squares[i] = b2 * after.squares[i] + (1 - b2) * g * g;
    at::Tensor step = after.means[i] / c1 / ((after.squares[i] / c2).sqrt() + kEps);
    if (c.mode == 1) step = step + kDecay * p;
    p = p - kLr * step;
  }
  return after;
}

class Adam : public testing::TestWithParam<AdamCase> {
 protected:
  TensorLists lists() const {
    const at::ScalarType dtype = GetParam().dtype;
    TensorLists all = {random_list(dtype), random_list(dtype), random_list(at::kFloat), positive_list(at::kFloat)};
    for (Tensors& list : all) list.push_back(list.front().select(0, 0).clone());  // zero-dimensional
    return all;
  }

  Tensors masters() const {
    Tensors list = random_list(at::kFloat);
    list.push_back(list.front().select(0, 0).clone());
    return list;
  }

  void capturable(const at::Tensor& noop, const TensorLists& lists) const {
    multi_tensor_adam_capturable_cuda(kChunk, noop, lists, scalar(kLr), kBeta1, kBeta2, kEps, step_, GetParam().mode,
                                      GetParam().correction, kDecay, scalar(kInvScale));
  }

  void capturable_master(const at::Tensor& noop, const TensorLists& lists) const {
    multi_tensor_adam_capturable_master_cuda(kChunk, noop, lists, scalar(kLr), kBeta1, kBeta2, kEps, step_, GetParam().mode,
                                             GetParam().correction, kDecay, scalar(kInvScale));
  }

  at::Tensor step_ = int_scalar(kStep);
};

// K-ADAM: the flag is not looked at; float64 is computed in float32 as in Apex.
TEST_P(Adam, FollowsTheFormulaWithAndWithoutTheFlag) {
  const TensorLists l = lists();
  const ExpectedAdam expected = reference(GetParam(), l[0], l[1], l[2], l[3], 1.0);
  const Tensors grads = clones(l[0]);
  multi_tensor_adam_cuda(kChunk, flag(1), l, kLr, kBeta1, kBeta2, kEps, kStep, GetParam().mode, GetParam().correction, kDecay);
  expect_near(l[1], expected.params);
  expect_near(l[2], expected.means);
  expect_near(l[3], expected.squares);
  expect_equal(l[0], grads);
}

// K-ADAMC: unscales gradients in place; moments keep their own precision.
TEST_P(Adam, CapturableFollowsTheFormulaAndUnscalesGradients) {
  const TensorLists l = lists();
  const Tensors grads = clones(l[0]);
  const ExpectedAdam expected = reference(GetParam(), l[0], l[1], l[2], l[3], kInvScale);
  capturable(flag(), l);
  expect_near(l[1], expected.params);
  expect_near(l[2], expected.means);
  expect_near(l[3], expected.squares);
  const at::ScalarType wide = GetParam().dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (size_t i = 0; i < grads.size(); ++i) {
    EXPECT_TRUE(at::equal(l[0][i], grads[i].to(wide).mul(kInvScale).to(GetParam().dtype))) << i;
  }
  EXPECT_EQ(step_.item<int>(), kStep) << "the caller counts steps";
}

// K-ADAMCM
TEST_P(Adam, CapturableMasterUpdatesMastersAndParams) {
  TensorLists l = lists();
  l.push_back(masters());
  const ExpectedAdam expected = reference(GetParam(), l[0], l[4], l[2], l[3], kInvScale);
  capturable_master(flag(), l);
  expect_near(l[4], expected.params);
  expect_near(l[2], expected.means);
  expect_near(l[3], expected.squares);
  for (size_t i = 0; i < l[1].size(); ++i) EXPECT_TRUE(at::equal(l[1][i], l[4][i].to(GetParam().dtype))) << i;
}

TEST_P(Adam, AStepTensorBelow1IsRefused) {
  const TensorLists l = lists(), before = clones(l);
  step_.zero_();
  if (GetParam().correction == 1) {
    apex::test::expect_error<c10::ValueError>([&] { capturable(flag(), l); }, {"step is 0. Steps are counted from 1"});
    expect_equal(l, before);
  } else {
    capturable(flag(), l);  // without correction the step is not used
    EXPECT_TRUE(l[1].front().isfinite().all().item<bool>());
  }
}

// K-ADAMC, K-ADAMCM: R
TEST_P(Adam, ASetFlagChangesNothingWhenCapturable) {
  TensorLists l = lists();
  TensorLists before = clones(l);
  capturable(flag(1), l);
  expect_equal(l, before);
  l.push_back(masters());
  before = clones(l);
  capturable_master(flag(1), l);
  expect_equal(l, before);
  step_.zero_();  // of a caller that counts from 0, which the flag stops in the first step
  capturable_master(flag(1), l);
  expect_equal(l, before);
}

INSTANTIATE_TEST_SUITE_P(, Adam,
                         testing::Values(AdamCase{at::kFloat, 0, 0}, AdamCase{at::kFloat, 0, 1}, AdamCase{at::kFloat, 1, 1},
                                         AdamCase{at::kHalf, 0, 1}, AdamCase{at::kHalf, 1, 1}, AdamCase{at::kBFloat16, 1, 1},
                                         AdamCase{at::kDouble, 1, 1}),
                         name_of);

// Apex reads moments of any dtype as float32.
TEST(AdamLists, Accepts16BitMoments) {
  const Tensors grads = random_list(at::kHalf), params = random_list(at::kHalf);
  const Tensors means = random_list(at::kBFloat16), squares = positive_list(at::kBFloat16);
  const ExpectedAdam expected = reference({at::kHalf, 1, 1}, grads, params, means, squares, 1.0);
  multi_tensor_adam_cuda(kChunk, flag(), {grads, params, means, squares}, kLr, kBeta1, kBeta2, kEps, kStep, 1, 1, kDecay);
  expect_near(params, expected.params);
  expect_near(means, expected.means);
}

// As in Apex, only bias correction uses `step`.
TEST(AdamLists, AnyStepWithoutBiasCorrection) {
  const Tensors grads = {at::ones({2})}, params = {at::zeros({2})}, means = {at::zeros({2})}, squares = {at::zeros({2})};
  multi_tensor_adam_cuda(kChunk, flag(), {grads, params, means, squares}, kLr, kBeta1, kBeta2, 0.0f, 0, 1, 0, 0.0f);
  EXPECT_TRUE(at::equal(means[0], at::full({2}, 0.25)));
}

}  // namespace
