// Edge cases of single optimizer updates, and their errors.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/optimizer_cases.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;

// --- SGD (K-SGD)

// A factor of 0 is no product with the parameter, which would make NaN of Inf. The finite values are exact.
TEST(Sgd, DecaysByEveryFactorButZero) {
  for (const bool after_momentum : {false, true}) {
    const Tensors grads = {at::ones({40})}, params = {at::full({40}, 2.0f)}, buffers = {at::full({40}, 4.0f)};
    kernels::SgdSettings settings;
    settings.lr = 0.25;
    settings.momentum = 0.5;
    settings.weight_decay = 1;
    settings.weight_decay_after_momentum = after_momentum;
    kernels::multi_tensor_sgd(grads, params, buffers, {}, settings);
    // Before: the buffer is 4 / 2 + (1 + 2), and the step. After: the buffer is 4 / 2 + 1, and the step 3 + 2.
    EXPECT_TRUE(buffers[0].eq(after_momentum ? 3 : 5).all().item<bool>());
    EXPECT_TRUE(params[0].eq(0.75).all().item<bool>());
    settings.weight_decay = 0;
    params[0].fill_(INFINITY);
    kernels::multi_tensor_sgd(grads, params, buffers, {}, settings);
    EXPECT_TRUE(params[0].eq(INFINITY).all().item<bool>());
  }
}

// The change 2^-12 + 2^-24 becomes 2^-12 in float16, and 1 - 2^-12, in the middle of two float16 values, goes to the even
// one, 1. With the whole change the parameter would become 1 - 2^-11.
TEST(Sgd, RoundsTheChangeOfAFloat16ParameterFirst) {
  for (const double momentum : {0.0, 0.5}) {
    const Tensors grads = {at::full({40}, 0x1p-12, at::kHalf)}, params = {at::ones({40}, at::kHalf)},
                  buffers = {at::zeros({40})};
    kernels::SgdSettings settings;
    settings.lr = 1 + 0x1p-12;
    settings.momentum = momentum;
    settings.first_run = true;
    kernels::multi_tensor_sgd(grads, params, buffers, {}, settings);
    EXPECT_TRUE(params[0].eq(1).all().item<bool>()) << momentum;
  }
}

// --- LAMB (K-LAMB)

// The update is near 1.3, which float16 rounds. The square of a float16 value is exact in float32, and so is its root.
TEST(Lamb, TheNormOfFloat16UpdatesIsThatOfTheStoredValues) {
  kernels::LambSettings settings;
  settings.weight_decay = 0.1;
  const Tensors grads = {at::full({1}, 0.3f)}, params = {at::full({1}, 3.0f)}, means = {at::zeros({1})},
                squares = {at::zeros({1})};
  const Tensors updates = {at::empty({1}, at::kHalf)};
  const auto norms = kernels::multi_tensor_lamb_stage_1(grads, params, means, squares, updates, {}, settings);
  EXPECT_EQ(norms.updates[0].item<float>(), updates[0].item<float>());
  EXPECT_NE(updates[0].item<float>(), 0);
}

// --- NovoGrad (K-NOVO, FOPT-11)

class NovoGradNorm : public ::testing::TestWithParam<kernels::NormType> {
 protected:
  static double norm_of(const at::Tensor& grad) {
    if (grad.numel() == 0) return 0;
    const at::Tensor values = grad.to(at::kDouble).mul(kGradScale);
    return GetParam() == kernels::NormType::l2 ? std::sqrt(values.square().sum().item<double>())
                                               : values.abs().max().item<double>();
  }

  static double blend(double running, double norm, double beta2) {
    if (GetParam() == kernels::NormType::inf) return beta2 * running + (1 - beta2) * norm;
    return std::sqrt(beta2 * running * running + (1 - beta2) * norm * norm);
  }
};

TEST_P(NovoGradNorm, IsKeptForEachTensor) {
  const Tensors grads = {random_values(17, at::kHalf), random_values(65537, at::kHalf), random_values(0, at::kHalf)};
  const Tensors params = {at::ones({17}), at::ones({65537}), at::ones({0})};
  const Tensors means = {at::zeros({17}), at::zeros({65537}), at::zeros({0})};
  const at::Tensor norms = at::empty({3}).fill_(NAN);
  kernels::NovoGradSettings settings;
  settings.grad_scale = kGradScale;
  settings.norm_type = GetParam();
  settings.first_run = true;
  kernels::multi_tensor_novograd(grads, params, means, norms, {}, settings);
  // A float32 norm is within 2.5 roundings of 2^-24 (rules/rule.h), and its elements have one more; blending takes five.
  for (int64_t i = 0; i < 3; ++i) {
    const double expected = norm_of(grads[static_cast<size_t>(i)]);
    EXPECT_NEAR(norms[i].item<float>(), expected, 4 * 0x1p-24 * expected) << i;
  }
  settings.first_run = false;
  settings.beta2 = 0.75;
  norms.fill_(2.0);
  kernels::multi_tensor_novograd(grads, params, means, norms, {}, settings);
  for (int64_t i = 0; i < 3; ++i) {
    const double expected = blend(2.0, norm_of(grads[static_cast<size_t>(i)]), 0.75);
    EXPECT_NEAR(norms[i].item<float>(), expected, 9 * 0x1p-24 * expected) << i;
  }
}

TEST_P(NovoGradNorm, ANonFiniteOneSetsTheFlagAndStopsTheUpdate) {
  Case update = cases().front();
  for (const Case& candidate : cases()) {
    if (candidate.name == (GetParam() == kernels::NormType::l2 ? "NovoGrad" : "NovoGradMaxNorm")) update = candidate;
  }
  ASSERT_TRUE(update.has_norms);
  for (const double value : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    Problem problem = make_problem(update, storages().front(), {17, 530});
    problem.grads[1][529] = value;
    Problem before = problem.copy();
    const at::Tensor flag = clear_flag();
    update.step(problem, flag);
    EXPECT_EQ(flag.item<int>(), 1);
    EXPECT_TRUE(same_bytes(problem.all(), before.all()));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, NovoGradNorm, ::testing::Values(kernels::NormType::l2, kernels::NormType::inf),
                         [](const auto& test) { return test.param == kernels::NormType::l2 ? "L2" : "Max"; });

// --- LAMB and LARC with norms that are zero

TEST(Lamb, ATensorOfZerosUsesThePlainLearningRate) {
  kernels::LambSettings settings;
  settings.lr = 0.5;
  settings.weight_decay = 0.1;
  const Tensors grads = {at::full({40}, 3.0f)}, params = {at::zeros({40})}, means = {at::zeros({40})},
                squares = {at::zeros({40})};
  const Tensors updates = {at::empty({40})};
  const auto norms = kernels::multi_tensor_lamb_stage_1(grads, params, means, squares, updates, {}, settings);
  EXPECT_EQ(norms.params[0].item<float>(), 0);
  // Adam's first step is the sign of the gradient. The epsilon, 1e-6 beside 3, takes 3e-7 of it, and some ten roundings of
  // 2^-24 take 6e-7.
  EXPECT_NEAR(norms.updates[0].item<float>(), std::sqrt(40.0), 1e-5);
  kernels::multi_tensor_lamb_stage_2(updates, params, {}, norms, settings);
  EXPECT_NEAR(params[0][39].item<float>(), -0.5, 1e-6);
}

// The rate is lr times the quotient of the norms, and lr where either is 0. All values are exact.
TEST(Lamb, OnlyANormOfZeroTurnsTheTrustRatioOff) {
  kernels::LambSettings settings;
  settings.lr = 0.5;
  settings.use_nvlamb = true;
  const Tensors updates = {at::zeros({4}), at::ones({4}), at::ones({4}), at::ones({4})};
  Tensors params;
  for (int i = 0; i < 4; ++i) params.push_back(at::full({4}, 3.0f));
  const kernels::LambNorms norms = {at::tensor({6.0f, 6.0f, 1.0f, 0.0f}), at::tensor({0.0f, 1.0f, 2.0f, 2.0f})};
  kernels::multi_tensor_lamb_stage_2(updates, params, {}, norms, settings);
  // An update of zeros: 3 - 0.5 * 0. Then 3 - 0.5 * 6 / 1, 3 - 0.5 * 1 / 2, and 3 - 0.5.
  const double expected[] = {3, 0, 2.75, 2.5};
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(params[i].eq(expected[i]).all().item<bool>()) << i;
}

TEST(Lamb, AStoppedStageGivesNoNorms) {
  kernels::StepTensors tensors;
  tensors.found_inf = at::ones({1}, at::kInt);
  const Tensors list = {at::ones({4})}, params = {at::ones({4})}, means = {at::ones({4})}, squares = {at::ones({4})};
  const Tensors updates = {at::ones({4})};
  const auto norms = kernels::multi_tensor_lamb_stage_1(list, params, means, squares, updates, {}, {}, tensors);
  EXPECT_FALSE(norms.params.defined());
  kernels::multi_tensor_lamb_stage_2(updates, params, {}, norms, {}, tensors);
  EXPECT_TRUE(params[0].eq(1).all().item<bool>());
}

TEST(Larc, ATensorWithoutNormIsUnscaledAndNotDecayed) {
  kernels::LarcSettings settings;
  settings.grad_scale = 0.5;
  settings.weight_decay = 0.1;
  settings.lr = 0.1;
  const Tensors grads = {at::full({40}, 3.0f), at::zeros({40})}, params = {at::zeros({40}), at::ones({40})};
  kernels::multi_tensor_larc(grads, params, settings);
  EXPECT_TRUE(grads[0].eq(1.5).all().item<bool>());
  EXPECT_TRUE(grads[1].eq(0).all().item<bool>());
}

TEST(Lars, ATensorWithoutNormUsesThePlainLearningRate) {
  kernels::LarsSettings settings;
  settings.lr = 0.5;
  settings.weight_decay = 0.25;
  settings.trust_coefficient = 2;
  const Tensors grads = {at::full({4}, 3.0f), at::zeros({4}), at::ones({4})};
  const Tensors params = {at::zeros({4}), at::ones({4}), at::ones({4})};
  const Tensors buffers = {at::full({4}, NAN), at::full({4}, NAN), at::full({4}, NAN)};
  kernels::multi_tensor_lars(grads, params, buffers, {}, {at::tensor({6.0f, 0.0f, 2.0f}), at::tensor({0.0f, 2.0f, 2.0f})},
                             settings);
  EXPECT_TRUE(params[0].eq(-1.5).all().item<bool>());
  EXPECT_TRUE(params[1].eq(0.875).all().item<bool>());
  // The rate is 0.5 * 2 * 2 / (2 + 0.25 * 2) = 0.8, and the step 1.25: both exact but for the rounding of 0.8.
  EXPECT_NEAR(params[2][3].item<double>(), 0, 0x1p-23);
  EXPECT_TRUE(buffers[0].eq(-1.5).all().item<bool>());
}

TEST(Lars, WrongNormsAreRefused) {
  const Tensors grads = {at::ones({3})}, params = {at::ones({3})}, buffers = {at::ones({3})};
  const at::Tensor one = at::ones({1});
  expect_error(
      [&] {
        kernels::multi_tensor_lars(grads, params, buffers, {}, {at::ones({2}), one}, {});
      },
      {"multi_tensor_lars", "norms.grads", "1"});
  expect_error(
      [&] {
        kernels::multi_tensor_lars(grads, params, buffers, {}, {one, one.to(at::kDouble)}, {});
      },
      {"multi_tensor_lars", "norms.params"});
  expect_error(
      [&] {
        kernels::multi_tensor_lars(grads, params, buffers, {}, {{}, one}, {});
      },
      {"multi_tensor_lars", "norms.grads"});
  expect_error(
      [&] {
        kernels::multi_tensor_lars(grads, params, buffers, {}, {one, at::ones({1}, at::kMeta)}, {});
      },
      {"multi_tensor_lars", "norms.params is on meta", "cpu"});
  EXPECT_TRUE(params[0].eq(1).all().item<bool>());
}

// --- Autograd

TEST(VersionCounters, IncreaseOnlyForWrittenTensors) {
  const Tensors grads = {at::ones({4})}, params = {at::ones({4})}, means = {at::zeros({4})}, squares = {at::zeros({4})};
  const Tensors models = {at::ones({4}, at::kHalf)};
  kernels::StepTensors tensors;
  tensors.step = at::zeros({1}, at::kInt);
  const auto grad_version = grads[0]._version(), param_version = params[0]._version(), step_version = tensors.step._version();
  tensors.found_inf = at::ones({1}, at::kInt);
  kernels::multi_tensor_adam(grads, params, means, squares, models, {}, tensors);
  EXPECT_EQ(params[0]._version(), param_version);
  EXPECT_EQ(tensors.step._version(), step_version);
  tensors.found_inf.zero_();
  kernels::multi_tensor_adam(grads, params, means, squares, models, {}, tensors);
  EXPECT_EQ(grads[0]._version(), grad_version);
  for (const Tensors& written : {params, means, squares, models}) EXPECT_GT(written[0]._version(), 0u);
  EXPECT_EQ(tensors.step._version(), step_version + 1);
}

// --- Arguments rejected before anything changes

TEST(Rejected, AreTensorsOfOtherDevices) {
  for (const Case& update : cases()) {
    SCOPED_TRACE(update.name);
    Problem problem = make_problem(update, storages().front(), {3});
    for (Tensors* list : problem.lists()) {
      for (at::Tensor& tensor : *list) tensor = at::empty_like(tensor, at::TensorOptions().device(at::kMeta));
    }
    expect_error<c10::NotImplementedError>([&] { update.step(problem, at::Tensor()); }, {"multi_tensor_", "meta"});
  }
}

TEST(Rejected, IsFloat64) {
  const Tensors grads = {at::ones({3})}, params = {at::ones({3}, at::kDouble)};
  expect_error([&] { kernels::multi_tensor_sgd(grads, params, {}, {}, {}); }, {"multi_tensor_sgd", "params[0]", "Double"});
  EXPECT_TRUE(params[0].eq(1).all().item<bool>());
}

TEST(Rejected, AreMismatchedLists) {
  const Tensors grads = {at::ones({3})}, params = {at::ones({3})}, longer = {at::ones({4})};
  kernels::SgdSettings settings;
  settings.momentum = 0.9;
  expect_error([&] { kernels::multi_tensor_sgd(grads, params, {}, {}, settings); }, {"momentum_buffers", "size mismatch"});
  expect_error([&] { kernels::multi_tensor_sgd(grads, params, longer, {}, settings); }, {"momentum_buffers[0]", "4"});
  expect_error([&] { kernels::multi_tensor_sgd(grads, params, params, {}, settings); }, {"shares memory"});
  expect_error([&] { kernels::multi_tensor_sgd(grads, params, {}, longer, {}); }, {"model_params[0]"});
  expect_error([&] { kernels::multi_tensor_novograd(grads, params, {at::ones({3})}, at::ones({2}), {}, {}); },
               {"multi_tensor_novograd", "grad_norms", "1"});
}

TEST(Rejected, AreStepsBelowOne) {
  const Tensors a = {at::ones({3})}, b = {at::ones({3})}, c = {at::ones({3})}, d = {at::ones({3})};
  kernels::AdamSettings settings;
  settings.step = 0;
  EXPECT_THROW(kernels::multi_tensor_adam(a, b, c, d, {}, settings), c10::ValueError);
  EXPECT_TRUE(b[0].eq(1).all().item<bool>());
}

TEST(Rejected, IsAFlagOfAnotherDtype) {
  const Tensors grads = {at::ones({3})}, params = {at::ones({3})};
  kernels::StepTensors tensors;
  tensors.found_inf = at::zeros({1});
  expect_error([&] { kernels::multi_tensor_sgd(grads, params, {}, {}, {}, tensors); }, {"found_inf", "Float"});
}

}  // namespace
}  // namespace kernels_test
