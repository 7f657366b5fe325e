// Compares apex::contrib::xentropy::SoftmaxCrossEntropyLoss with its formula in float64, LibTorch's cross_entropy and finite
// differences.
#include <apex_cpp/contrib.h>

#include <cmath>

#include "kernels/cpu/isa.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using contrib::xentropy::SoftmaxCrossEntropyLoss;
using torch::Tensor;

struct LossCase {
  Tensor logits, labels, grad_losses;
  double smoothing;
  int64_t padding;
};

LossCase random_loss(torch::Dtype dtype, int64_t rows, int64_t classes, double smoothing) {
  torch::manual_seed(static_cast<uint64_t>(rows * 1000 + classes));
  LossCase c{(torch::randn({rows, classes}) * 4).to(dtype), torch::randint(classes, {rows}), torch::randn({rows}), smoothing,
             0};
  return c;
}

struct LossResult {
  Tensor losses, grad_logits;
};

LossResult fused(const LossCase& c, bool half_to_float = false) {
  const Tensor logits = c.logits.detach().clone().requires_grad_();
  const Tensor losses = SoftmaxCrossEntropyLoss::apply(logits, c.labels, c.smoothing, c.padding, half_to_float);
  losses.backward(c.grad_losses.to(losses.scalar_type()));
  return {losses.detach(), logits.grad()};
}

/// The formula, with float64 log_softmax, for gradients in the losses' dtype.
LossResult exact(const LossCase& c, torch::Dtype losses_dtype) {
  const Tensor logits = c.logits.detach().to(torch::kDouble).requires_grad_();
  const Tensor logp = torch::log_softmax(logits, 1);
  const Tensor at_label = logp.gather(1, c.labels.clamp(0, logits.size(1) - 1).unsqueeze(1)).squeeze(1);
  const Tensor losses = (-(1 - c.smoothing) * at_label - c.smoothing * logp.mean(1)).masked_fill(c.labels.eq(c.padding), 0.0);
  losses.backward(c.grad_losses.to(losses_dtype).to(torch::kDouble));
  return {losses.detach(), logits.grad()};
}

double step_of(torch::Dtype dtype) {
  return dtype == torch::kHalf ? 0x1p-11 : dtype == torch::kBFloat16 ? 0x1p-8 : dtype == torch::kFloat ? 0x1p-24 : 0x1p-53;
}

/// A float32 exponential is within 2 units of 2^-23 of the exact one (kernels/xentropy/formulas.h), and so is a sum of them.
/// Rounding the argument of an exponential, which is at most 60 here, changes the result by a relative 60 * 2^-24, and so does
/// rounding lse for the gradient. The loss is a float64 difference of numbers up to 40. Sums over the classes are float64, here
/// and in the reference.
void expect_close_to_exact(const LossCase& c, const LossResult& found, const char* what) {
  SCOPED_TRACE(what);
  const auto losses_dtype = found.losses.scalar_type();
  const LossResult want = exact(c, losses_dtype);
  const double arithmetic = c.logits.scalar_type() == torch::kDouble ? 0x1p-53 : 0x1p-24;
  const double relative = (4 + 2 * 60) * arithmetic + static_cast<double>(c.logits.size(1)) * 0x1p-53;
  const Tensor off = (found.losses.to(torch::kDouble) - want.losses).abs();
  EXPECT_TRUE(off.le(relative + want.losses.abs() * (step_of(losses_dtype) + arithmetic)).all().item<bool>()) << off.max();
  ASSERT_EQ(found.grad_logits.scalar_type(), c.logits.scalar_type());
  // Probability and target are at most 1. The gradient is their difference times dy, with 3 roundings, and is rounded when
  // stored.
  const Tensor allowed = c.grad_losses.to(torch::kDouble).abs().unsqueeze(1) * (relative + 3 * arithmetic) +
                         want.grad_logits.abs() * step_of(c.logits.scalar_type()) +
                         (c.logits.scalar_type() == torch::kHalf ? 0x1p-25 : 0.0);
  const Tensor grad_off = (found.grad_logits.to(torch::kDouble) - want.grad_logits).abs();
  EXPECT_TRUE(grad_off.le(allowed).all().item<bool>()) << (grad_off - allowed).max();
}

class Xentropy : public ::testing::TestWithParam<torch::Dtype> {};

TEST_P(Xentropy, LossesAndGradientsFollowTheFormula) {
  for (const int64_t classes : {1, 2, 10, 127, 128, 129, 1000, 5003}) {
    for (const double smoothing : {0.0, 0.1, 1.0}) {
      SCOPED_TRACE(::testing::Message() << classes << " classes, smoothing " << smoothing);
      LossCase c = random_loss(GetParam(), 9, classes, smoothing);
      expect_close_to_exact(c, fused(c), "class 0 is padding");
      c.padding = -100;
      c.labels[3] = -100;
      const LossResult found = fused(c);
      EXPECT_EQ(found.losses.scalar_type(), GetParam() == torch::kDouble ? torch::kDouble : torch::kFloat);
      expect_close_to_exact(c, found, "-100 is padding");
      EXPECT_EQ(found.losses[3].item<double>(), 0);
      EXPECT_EQ(found.grad_logits[3].count_nonzero().item<int64_t>(), 0);
    }
  }
}

TEST_P(Xentropy, HalfToFloatChangesNothingFor16BitsAndIsAnErrorForOthers) {
  const LossCase c = random_loss(GetParam(), 17, 300, 0.1);
  if (GetParam() == torch::kFloat || GetParam() == torch::kDouble) {
    EXPECT_TRUE(contains(message_of([&] { fused(c, true); }), "half_to_float"));
    return;
  }
  const LossResult found = fused(c, true), want = fused(c);
  EXPECT_EQ(bytes_of(found.losses), bytes_of(want.losses));
  EXPECT_EQ(bytes_of(found.grad_logits), bytes_of(want.grad_logits));
}

TEST_P(Xentropy, SameBitsAtAnyNumberOfThreadsAndOnAnyInstructionSet) {
  using kernels::cpu::Isa;
  const LossCase c = random_loss(GetParam(), 200, 700, 0.2);
  const int threads = at::get_num_threads();
  const Isa isa = kernels::cpu::current_isa();
  const LossResult want = fused(c);
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    for (const Isa each : kernels::cpu::kEveryIsa) {
      if (!kernels::cpu::is_available(each)) continue;
      kernels::cpu::set_current_isa(each);
      const LossResult found = fused(c);
      EXPECT_EQ(bytes_of(found.losses), bytes_of(want.losses)) << count << " " << kernels::cpu::name_of(each);
      EXPECT_EQ(bytes_of(found.grad_logits), bytes_of(want.grad_logits)) << count << " " << kernels::cpu::name_of(each);
    }
  }
  kernels::cpu::set_current_isa(isa);
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Xentropy, ::testing::Values(torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

// In float64, a loss takes sums over 50 classes: some hundred roundings of 2^-53, together 1e-14, on either side. It is below
// 12, so the gradient of its square is off by up to 24 times that.
TEST(XentropyLoss, MatchesLibTorchForAnyLayout) {
  const Tensor base = torch::randn({50, 12}, torch::kDouble);
  const Tensor labels = torch::randint(50, {24}).slice(0, 0, 24, 2);
  const Tensor fused_logits = base.clone().requires_grad_(), torch_logits = base.clone().requires_grad_();
  const auto options =
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone).label_smoothing(0.1).ignore_index(-1);
  const Tensor want = torch::nn::functional::cross_entropy(torch_logits.t(), labels, options);
  const Tensor found = SoftmaxCrossEntropyLoss::apply(fused_logits.t(), labels, 0.1, /*padding_idx=*/-1);
  EXPECT_TRUE(torch::allclose(found, want, 0, 1e-13));
  want.square().sum().backward();
  found.square().sum().backward();
  EXPECT_TRUE(torch::allclose(fused_logits.grad(), torch_logits.grad(), 0, 1e-12));
}

// Central differences of float64 losses: off by the third derivative times h^2 / 6 = 2e-11, and by some twenty roundings of
// 2^-53 in sums of losses up to 50, over 2 h: 6e-9.
TEST(XentropyLoss, GradientMatchesFiniteDifferences) {
  const LossCase c = random_loss(torch::kDouble, 4, 6, 0.3);
  const Tensor grad = fused(c).grad_logits;
  constexpr double kStep = 1e-5;
  for (int64_t i = 0; i < c.logits.numel(); ++i) {
    const auto moved = [&](double by) {
      Tensor logits = c.logits.clone();
      logits.view(-1)[i] += by;
      return (SoftmaxCrossEntropyLoss::apply(logits, c.labels, c.smoothing, c.padding) * c.grad_losses).sum().item<double>();
    };
    EXPECT_NEAR((moved(kStep) - moved(-kStep)) / (2 * kStep), grad.view(-1)[i].item<double>(), 1e-8) << i;
  }
}

TEST(XentropyLoss, AcceptsLogitsOfAnySize) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor logits = torch::tensor({{3e38F, 0.0F, -3e38F}, {-200.0F, -201.0F, -500.0F}, {1.0F, 2.0F, -kInf}});
  const Tensor labels = torch::tensor({1, 1, 0});
  const Tensor x = logits.clone().requires_grad_();
  const Tensor losses = SoftmaxCrossEntropyLoss::apply(x, labels, 0.0, -100);
  EXPECT_EQ(losses[0].item<float>(), 3e38F);
  // The exponential is within two units of 2^-23, the logarithm within one, and values up to 202 are subtracted exactly.
  EXPECT_NEAR(losses[1].item<double>(), 1 + std::log1p(std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(losses[2].item<double>(), 1 + std::log1p(std::exp(-1.0)), 1e-6) << "a class that -Inf rules out";
  losses.sum().backward();
  EXPECT_TRUE(torch::isfinite(x.grad()).all().item<bool>());
  EXPECT_EQ(x.grad()[2][2].item<float>(), 0.0F);
  EXPECT_EQ(SoftmaxCrossEntropyLoss::apply(logits, labels, 0.1, -100)[2].item<double>(), infinity) << "smoothing asks for it";
  const Tensor poisoned = torch::tensor({{1.0F, kNan, 2.0F}, {0.0F, 1.0F, 2.0F}});
  const Tensor found = SoftmaxCrossEntropyLoss::apply(poisoned, torch::tensor({0, 1}), 0.0, -100);
  EXPECT_TRUE(std::isnan(found[0].item<float>()));
  EXPECT_TRUE(std::isfinite(found[1].item<float>()));
}

// An exponential of 1000 is Inf in every dtype.
TEST(XentropyLoss, SubtractsTheLargestLogitWhereverItIs) {
  for (const auto dtype : {torch::kHalf, torch::kFloat, torch::kDouble}) {
    for (const int64_t classes : {1, 2, 37}) {
      const Tensor logits = torch::eye(classes, dtype) * 1000;
      const Tensor losses = SoftmaxCrossEntropyLoss::apply(logits, torch::arange(classes), 0.0, /*padding_idx=*/-1);
      EXPECT_TRUE(losses.eq(0).all().item<bool>()) << losses;
    }
  }
}

TEST(XentropyLoss, OfNoRowsIsEmpty) {
  const Tensor logits = torch::zeros({0, 5}).requires_grad_();
  const Tensor losses = SoftmaxCrossEntropyLoss::apply(logits, torch::zeros({0}, torch::kLong));
  EXPECT_EQ(losses.numel(), 0);
  losses.sum().backward();
  EXPECT_EQ(logits.grad().sizes(), (std::vector<int64_t>{0, 5}));
}

TEST(XentropyLoss, RejectsUnsupportedArguments) {
  const Tensor logits = torch::randn({4, 3}), labels = torch::tensor({0, 1, 2, 1});
  const auto expect_error = [](const Tensor& x, const Tensor& y, const char* part, double smoothing = 0.0) {
    const std::string text = message_of([&] { SoftmaxCrossEntropyLoss::apply(x, y, smoothing); });
    EXPECT_TRUE(contains(text, part)) << text;
  };
  expect_error(Tensor(), labels, "undefined");
  expect_error(logits.view({2, 2, 3}), labels, "view({-1, classes})");
  expect_error(logits.to(torch::kInt), labels, "logits are Int. Convert them to float16, bfloat16, float32 or float64.");
  expect_error(torch::zeros({4, 0}), labels, "no classes");
  expect_error(logits, Tensor(), "undefined");
  expect_error(logits, labels.view({2, 2}), "view(-1)");
  expect_error(logits, labels.to(torch::kInt), "kLong");
  expect_error(logits, labels.slice(0, 0, 3), "3 labels");
  expect_error(logits, labels.to(torch::kMeta), "meta");
  expect_error(logits, labels, "from 0 to 1", 1.5);
  expect_error(logits, labels, "from 0 to 1", -0.5);
  expect_error(logits, torch::tensor({0, 1, 3, 1}), "label 2 is 3, but there are 3 classes");
  expect_error(logits, torch::tensor({3, 1, 2, 1}), "label 0 is 3, but there are 3 classes");
  EXPECT_THROW(SoftmaxCrossEntropyLoss::apply(logits, torch::tensor({0, -1, 2, 1})), c10::IndexError);
  const Tensor x = logits.clone().requires_grad_();
  const Tensor sum = SoftmaxCrossEntropyLoss::apply(x, labels).square().sum();
  const auto grads = torch::autograd::grad({sum}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_THROW(grads[0].sum().backward(), c10::NotImplementedError);
}

TEST(XentropyLoss, HasNoKernelsOnOtherDevices) {
  const Tensor logits = torch::randn({4, 3}, torch::kMeta), labels = torch::zeros({4}, logits.options().dtype(torch::kLong));
  const std::string text = message_of<c10::NotImplementedError>([&] { SoftmaxCrossEntropyLoss::apply(logits, labels); });
  EXPECT_TRUE(contains(text, "on meta. Use torch::nn::functional::cross_entropy there.")) << text;
}

class XentropyAtLevel : public AmpTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(XentropyAtLevel, TrainsWithLogitsInTheLevelsDtype) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet());
  const Tensor labels = torch::tensor({0, 1, 2, 1});
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    const Tensor losses = SoftmaxCrossEntropyLoss::apply(net->forward(features()), labels, 0.1, /*padding_idx=*/-1);
    EXPECT_EQ(losses.scalar_type(), torch::kFloat);
    last = losses.mean().item<double>();
    if (step == 0) first = last;
    opt.zero_grad();
    { amp::scale_loss(losses.mean(), opt).backward(); }
    opt.step();
  }
  EXPECT_LT(last, first);
}

// A scale of 65536 is Inf in float16, so the backward pass of a mean in float16 would give Inf at every step.
TEST_F(AmpTest, XentropyOf16BitLogitsTakesTheFirstStepAtTheFirstScale) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet());
  const Tensor logits = net->forward(features());
  ASSERT_EQ(logits.scalar_type(), torch::kHalf);
  const Tensor losses = SoftmaxCrossEntropyLoss::apply(logits, torch::tensor({0, 1, 2, 1}), 0.1, /*padding_idx=*/-1);
  { amp::scale_loss(losses.mean(), opt).backward(); }
  EXPECT_EQ(amp::loss_scaler().loss_scale(), 65536);
}

INSTANTIATE_TEST_SUITE_P(Levels, XentropyAtLevel, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace apex::test
