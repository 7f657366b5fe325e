// Compares apex::contrib::clip_grad_norm_ with float64 norms and LibTorch's own function.
#include <apex_cpp/contrib.h>

#include <limits>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kInfiniteOrder = std::numeric_limits<double>::infinity();

Tensors params_with_grads(const std::vector<torch::Dtype>& dtypes, double size = 1) {
  Tensors params;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    Tensor param = torch::zeros({7 + static_cast<int64_t>(i), 300}, dtypes[i]).requires_grad_();
    param.mutable_grad() = (torch::randn(param.sizes()) * size).to(dtypes[i]);
    params.push_back(param);
  }
  params.push_back(torch::zeros({3}).requires_grad_());  // without a gradient
  return params;
}

Tensors grads_of(const Tensors& params) {
  Tensors grads;
  for (const Tensor& param : params) {
    if (param.grad().defined()) grads.push_back(param.grad().clone());
  }
  return grads;
}

double norm64(const Tensors& grads, double order) {
  Tensors flat;
  for (const Tensor& grad : grads) flat.push_back(grad.to(torch::kDouble).flatten());
  return torch::linalg_vector_norm(torch::cat(flat), order).item<double>();
}

double epsilon_of(torch::Dtype dtype) {
  return dtype == torch::kHalf ? 0x1p-11 : dtype == torch::kBFloat16 ? 0x1p-8 : dtype == torch::kFloat ? 0x1p-24 : 0x1p-53;
}

struct ClipCase {
  const char* name;
  std::vector<torch::Dtype> dtypes;
  double order;
};

class ContribClip : public ::testing::TestWithParam<ClipCase> {};

TEST_P(ContribClip, ScalesGradientsToTheNorm) {
  for (const double max_norm : {1.5, 1e6}) {
    SCOPED_TRACE(max_norm);
    torch::manual_seed(3);
    const Tensors params = params_with_grads(GetParam().dtypes);
    const Tensors before = grads_of(params);
    const double want = norm64(before, GetParam().order);
    const Tensor norm = contrib::clip_grad_norm_(params, max_norm, GetParam().order);
    const bool has_double = GetParam().dtypes.back() == torch::kDouble;
    EXPECT_EQ(norm.dim(), 0);
    EXPECT_EQ(norm.scalar_type(), has_double ? torch::kDouble : torch::kFloat);
    // The kernels' norm is within 2.5 units of 2^-24 of the exact one (kernels/multi_tensor.h). LibTorch's operators compute it
    // in float64 and round once.
    const double off = has_double ? 1e-12 : 2.5 * 0x1p-24;
    EXPECT_NEAR(norm.item<double>(), want, off * want);
    const double coefficient = std::min(1.0, max_norm / (want + 1e-6));
    const Tensors after = grads_of(params);
    for (size_t i = 0; i < before.size(); ++i) {
      const Tensor exact = before[i].to(torch::kDouble) * coefficient;
      // Further roundings: the coefficient's sum, quotient, product, clamp and conversion, and the final product.
      const double each = off + 5 * 0x1p-24 + 2 * epsilon_of(before[i].scalar_type());
      const Tensor wrong = (after[i].to(torch::kDouble) - exact).abs() > exact.abs() * each + 0x1p-25;
      EXPECT_FALSE(wrong.any().item<bool>()) << i;
      EXPECT_TRUE(max_norm < want || torch::equal(after[i], before[i])) << "no bit changes where nothing is clipped";
    }
  }
}

const std::vector<torch::Dtype> kMixed{torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kHalf};
INSTANTIATE_TEST_SUITE_P(All, ContribClip,
                         ::testing::Values(ClipCase{"float32", {torch::kFloat, torch::kFloat}, 2},
                                           ClipCase{"float16", {torch::kHalf}, 2}, ClipCase{"bfloat16", {torch::kBFloat16}, 2},
                                           ClipCase{"mixed", kMixed, 2},
                                           ClipCase{"float64", {torch::kFloat, torch::kDouble}, 2},
                                           ClipCase{"infinity", kMixed, kInfiniteOrder}, ClipCase{"one", kMixed, 1},
                                           ClipCase{"three", {torch::kFloat, torch::kDouble}, 3}),
                         [](const auto& test) { return std::string(test.param.name); });

struct WideCase {
  const char* name;
  torch::Dtype dtype;
  int64_t count;
  double value, order, max_norm;
};

class ContribClipWide : public ::testing::TestWithParam<WideCase> {};

// Equal values whose norm or clipping coefficient the gradients' dtype cannot represent.
TEST_P(ContribClipWide, NormAndCoefficientExceedTheGradientsDtype) {
  const auto& [name, dtype, count, value, order, max_norm] = GetParam();
  // Not contiguous, so that order 2 uses operators as well.
  Tensor param = torch::zeros({count}, dtype).requires_grad_();
  param.mutable_grad() = torch::full({count, 2}, value, dtype).select(1, 0);
  const double want = value * std::pow(static_cast<double>(count), 1 / order);
  EXPECT_NEAR(contrib::clip_grad_norm_(param, max_norm, order).item<double>(), want, 0x1p-24 * want);
  // The norm is rounded once, and the product with the coefficient once more, to the dtype.
  const double clipped = value * max_norm / want;
  EXPECT_NEAR(param.grad().min().item<double>(), clipped, 2 * epsilon_of(dtype) * clipped);
  EXPECT_NEAR(param.grad().max().item<double>(), clipped, 2 * epsilon_of(dtype) * clipped);
}

INSTANTIATE_TEST_SUITE_P(All, ContribClipWide,
                         ::testing::Values(WideCase{"sum_of_float16", torch::kHalf, 100000, 1, 1, 1000},
                                           WideCase{"sum_of_bfloat16", torch::kBFloat16, 1000, 1.0078125, 1, 100},
                                           WideCase{"squares_of_float16", torch::kHalf, 1000, 4000, 2, 1000},
                                           WideCase{"cubes_of_float16", torch::kHalf, 1000, 20000, 3, 200},
                                           WideCase{"powers_of_float32", torch::kFloat, 16, 1e6, 8, 1},
                                           WideCase{"sum_of_many", torch::kFloat, 1000000, 0x1.555556p0, 1, 2},
                                           WideCase{"coefficient", torch::kHalf, 16000, 60000, 1, 5}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ContribClipGradNorm, Float16BesideFloat64) {
  Tensor half = torch::zeros({1000}, torch::kHalf).requires_grad_(), wide = torch::zeros({2}, torch::kDouble).requires_grad_();
  half.mutable_grad() = torch::full({1000}, 4000, torch::kHalf);
  wide.mutable_grad() = torch::ones({2}, torch::kDouble);
  const double want = std::sqrt(1000 * 4000.0 * 4000.0 + 2);
  // 1002 squares in float64: nine roundings of 2^-53 for each. A float16 is rounded once. The 1e-6 in the coefficient's
  // denominator takes 8e-12 of a float64.
  EXPECT_NEAR(contrib::clip_grad_norm_(Tensors{half, wide}, 1000).item<double>(), want, 1e-12 * want);
  EXPECT_NEAR(half.grad()[999].item<double>(), 4e6 / want, 4e6 / want * 0x1p-11);
  EXPECT_NEAR(wide.grad()[1].item<double>(), 1000 / want, 1e-11 * 1000 / want);
}

// Two float32 norms, each within a few units of 2^-24 = 6e-8, and two roundings of the products.
TEST(ContribClipGradNorm, MatchesLibTorch) {
  const Tensors params = params_with_grads({torch::kFloat, torch::kFloat, torch::kFloat});
  Tensors reference;
  for (const Tensor& param : params) {
    reference.push_back(param.detach().clone().requires_grad_());
    if (param.grad().defined()) reference.back().mutable_grad() = param.grad().clone();
  }
  const double want = torch::nn::utils::clip_grad_norm_(reference, 0.25);
  EXPECT_NEAR(contrib::clip_grad_norm_(params, 0.25).item<double>(), want, 1e-6 * want);
  for (size_t i = 0; i + 1 < params.size(); ++i) EXPECT_TRUE(torch::allclose(params[i].grad(), reference[i].grad(), 1e-6, 0));
}

// The 1e-6 in the coefficient's denominator takes 4e-7 of a value at most; float32 rounds by 6e-8 of it. So in the next tests.
TEST(ContribClipGradNorm, AcceptsOneTensorNoneAndTiedParameters) {
  EXPECT_EQ(contrib::clip_grad_norm_(Tensors{}, 1.0).item<double>(), 0);
  EXPECT_EQ(contrib::clip_grad_norm_(torch::zeros({2}).requires_grad_(), 1.0).item<double>(), 0);
  Tensor param = torch::zeros({2}).requires_grad_();
  param.mutable_grad() = torch::tensor({3.0F, 4.0F});
  EXPECT_EQ(contrib::clip_grad_norm_(Tensors{param, param}, 2.5).item<float>(), 5.0F) << "a tied parameter counts once";
  EXPECT_NEAR(param.grad()[1].item<float>(), 2.0F, 1e-6);
  EXPECT_NEAR(contrib::clip_grad_norm_(param, 1.0, 2.0, /*error_if_nonfinite=*/true).item<float>(), 2.5F, 1e-6);
}

// By their absolute values, of 5 and 12.
TEST(ContribClipGradNorm, AcceptsComplexGradients) {
  for (const auto dtype : {torch::kComplexFloat, torch::kComplexDouble}) {
    Tensor param = torch::zeros({2}, dtype).requires_grad_();
    param.mutable_grad() = torch::complex(torch::tensor({3.0, 0.0}), torch::tensor({4.0, -12.0})).to(dtype);
    const Tensor norm = contrib::clip_grad_norm_(param, 6.5);
    EXPECT_EQ(norm.scalar_type(), c10::toRealValueType(dtype));
    EXPECT_EQ(norm.item<double>(), 13.0);
    const Tensor half = torch::complex(torch::tensor({1.5, 0.0}), torch::tensor({2.0, -6.0})).to(dtype);
    EXPECT_TRUE(torch::allclose(param.grad(), half, 1e-6, 0)) << param.grad();
  }
}

TEST(ContribClipGradNorm, AcceptsGradientsWithGapsInMemory) {
  Tensor param = torch::zeros({4, 3}).requires_grad_();
  const Tensor memory = torch::ones({4, 6});
  param.mutable_grad() = memory.slice(1, 0, 6, 2);
  EXPECT_NEAR(contrib::clip_grad_norm_(param, 1.0).item<double>(), std::sqrt(12.0), 1e-6);
  EXPECT_NEAR(norm64({param.grad()}, 2), 1.0, 1e-6);
  EXPECT_EQ(memory[0][1].item<float>(), 1.0F) << "what lies between is left alone";
}

// As `imag()` of a conjugated tensor is one: the memory has the other sign. The norm of 3 and -4 is 5.
TEST(ContribClipGradNorm, AcceptsNegatedViews) {
  Tensor param = torch::zeros({2}).requires_grad_();
  param.mutable_grad() = torch::_neg_view(torch::tensor({-3.0F, 4.0F}));
  EXPECT_EQ(contrib::clip_grad_norm_(param, 2.5).item<float>(), 5.0F);
  EXPECT_NEAR(param.grad()[0].item<float>(), 1.5F, 1e-6);
  EXPECT_NEAR(param.grad()[1].item<float>(), -2.0F, 1e-6);
}

TEST(ContribClipGradNorm, ToANormOf0GivesZeros) {
  for (const double order : {2.0, 1.0, kInfiniteOrder}) {
    const Tensors params = params_with_grads(kMixed);
    EXPECT_GT(contrib::clip_grad_norm_(params, 0.0, order).item<double>(), 0);
    for (const Tensor& grad : grads_of(params)) EXPECT_EQ(grad.count_nonzero().item<int64_t>(), 0) << order;
  }
}

TEST(ContribClipGradNorm, SkipsEmptyGradients) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    for (const double order : {2.0, 1.0, kInfiniteOrder, -kInfiniteOrder, -1.0}) {
      Tensor empty = torch::zeros({0, 4}, dtype).requires_grad_();
      empty.mutable_grad() = torch::zeros({0, 4}, dtype);
      EXPECT_EQ(contrib::clip_grad_norm_(empty, 1.0, order).item<double>(), 0) << order;
      Tensor param = torch::zeros({2}, dtype).requires_grad_();
      param.mutable_grad() = torch::tensor({3.0, 4.0}).to(dtype);
      const double want = norm64({param.grad()}, order);
      EXPECT_NEAR(contrib::clip_grad_norm_(Tensors{empty, param}, 1.0, order).item<double>(), want, 1e-6 * want) << order;
    }
  }
}

TEST(ContribClipGradNorm, HandlesNonFiniteNorms) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    Tensors params = params_with_grads({torch::kFloat, dtype});
    params[0].mutable_grad().view(-1)[5] = kInf;
    const Tensors before = grads_of(params);
    EXPECT_THROW(contrib::clip_grad_norm_(params, 1.0, 2.0, /*error_if_nonfinite=*/true), c10::Error);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(params[i].grad(), before[i]));
    EXPECT_EQ(contrib::clip_grad_norm_(params, 1.0).item<double>(), kInf);
    EXPECT_TRUE(params[0].grad().view(-1)[5].isnan().item<bool>());
    EXPECT_EQ(params[1].grad().count_nonzero().item<int64_t>(), 0);
    EXPECT_TRUE(contrib::clip_grad_norm_(params, 1.0).isnan().item<bool>());
  }
}

TEST(ContribClipGradNorm, RejectsAGradientThatCannotBeScaledAndChangesNothing) {
  Tensor first = torch::zeros({4}).requires_grad_(), second = torch::zeros({4}).requires_grad_();
  first.mutable_grad() = torch::full({4}, 100.0);
  second.mutable_grad() = torch::ones({1}).expand({4});
  const auto clip = [&] { contrib::clip_grad_norm_({first, second}, 1.0); };
  EXPECT_TRUE(contains(message_of(clip), "Give the parameter a clone()"));
  EXPECT_TRUE(first.grad().equal(torch::full({4}, 100.0)));
  second.mutable_grad() = second.grad().clone();
  clip();
  EXPECT_LT(first.grad()[0].item<float>(), 1.0f);
}

TEST(ContribClipGradNorm, RejectsUnsupportedArguments) {
  Tensor param = torch::zeros({4, 2}).requires_grad_();
  EXPECT_THROW(contrib::clip_grad_norm_(param, -1.0), c10::ValueError);
  EXPECT_THROW(contrib::clip_grad_norm_(param, kNan), c10::ValueError);
  EXPECT_THROW(contrib::clip_grad_norm_(param, 1.0, kNan), c10::ValueError);
  EXPECT_TRUE(contains(message_of([&] { contrib::clip_grad_norm_(param, 1.0, 0.0); }), "norm_type is 0. Use 2"));
  param.mutable_grad() = torch::eye(4).slice(1, 0, 2).to_sparse();
  EXPECT_TRUE(contains(message_of([&] { contrib::clip_grad_norm_(param, 1.0); }), "sparse=false"));
}

class ContribClipAtLevel : public AmpTest, public ::testing::WithParamInterface<const char*> {};

// As in Apex programs: clips master gradients between the scale_loss block and the step.
TEST_P(ContribClipAtLevel, ClipsMasterGradients) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(128.0));
  { amp::scale_loss(net->forward(features()).square().sum() * 50, opt).backward(); }
  Tensors grads;
  for (const Tensor& param : amp::master_params(opt)) grads.push_back(param.grad().clone());
  const double want = norm64(grads, 2);
  ASSERT_GT(want, 0.1);
  // The kernels' norm is within 2.5 units of 2^-24 of the exact one (kernels/multi_tensor.h).
  EXPECT_NEAR(contrib::clip_grad_norm_(amp::master_params(opt), 0.1).item<double>(), want, 2.5 * 0x1p-24 * want);
  Tensors clipped;
  for (const Tensor& param : amp::master_params(opt)) clipped.push_back(param.grad());
  // O3 rounds the gradients to float16; the 1e-6 in the coefficient's denominator takes 1e-5 of them.
  EXPECT_NEAR(norm64(clipped, 2), 0.1, 0.1 * 0x1p-10);
  opt.step();
  EXPECT_FALSE(amp::step_result(opt).skipped);
}
INSTANTIATE_TEST_SUITE_P(Levels, ContribClipAtLevel, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace apex::test
