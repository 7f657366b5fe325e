// SL-*, BWD-*: the block around a backward pass, against gradients computed in float64.
#include "tests/amp/optimizers.h"

namespace apex::test {
namespace {

using torch::Tensor;

class ScaleLoss : public AmpTest {};

/// A single weight vector w with loss sum(w * x): the gradient is x, exact in every dtype used here.
struct DotImpl : torch::nn::Module {
  DotImpl() {
    half = register_parameter("half", torch::ones({3}));
    native = register_parameter("native", torch::ones({3}));
  }
  Tensor forward(Tensor x) { return (half * x).sum().to(torch::kFloat) + (native * x.to(native.dtype())).sum(); }
  Tensor half, native;
};
TORCH_MODULE(Dot);

Tensor x1() { return torch::tensor({1.0, -2.0, 0.5}); }
Tensor x2() { return torch::tensor({0.25, 4.0, -8.0}); }

/// `native` stays FP32 under O2, as a batch norm's weight would: it is put back before the optimizer sees it.
auto dot_at_o2(Dot& model, amp::InitializeOptions options = quiet().loss_scale(8.0)) {
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
  auto result = amp::initialize(model, optimizer, "O2", options);
  model->native.set_data(torch::ones({3}));
  return result;
}

TEST_F(ScaleLoss, Sl06ReturnsTheFloat32LossTimesTheScale) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  const Tensor loss = torch::full({2, 2}, 3.0, torch::kHalf).requires_grad_();
  auto scaled = amp::scale_loss(loss, opt);
  EXPECT_EQ(scaled.tensor().scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(scaled, torch::full({2, 2}, 24.0)));
}

TEST_F(ScaleLoss, Bwd10And20UnscaleIntoMastersAndInPlace) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), x1()));
  EXPECT_TRUE(torch::equal(model->native.grad(), x1()));
  EXPECT_TRUE(torch::equal(model->half.grad(), (x1() * 8).to(torch::kHalf))) << "the model's keeps its scaled value";
}

TEST_F(ScaleLoss, Bwd10And20AccumulateInFloat32) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  { amp::scale_loss(net->forward(x2()), opt).backward(); }
  EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), x1() + x2()));
  EXPECT_TRUE(torch::equal(model->native.grad(), x1() + x2()));
}

TEST_F(ScaleLoss, Bwd21AStaticScaleOfOneKeepsAccumulatedNativeGradients) {
  Dot model;
  auto [net, opt] = dot_at_o2(model, quiet().loss_scale(1.0));
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  { amp::scale_loss(net->forward(x2()), opt).backward(); }
  EXPECT_TRUE(torch::equal(model->native.grad(), x1() + x2()));
  EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), x1() + x2()));
}

TEST_F(ScaleLoss, Bwd20AGradientFromAnEarlierPassOnlyIsKept) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  { amp::scale_loss((model->half * x2().to(torch::kHalf)).sum(), opt).backward(); }
  EXPECT_TRUE(torch::equal(model->native.grad(), x1()));
  EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), x1() + x2()));
}

TEST_F(ScaleLoss, Sl07And09DelayedPassesAreUnscaledTogether) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  { amp::scale_loss(net->forward(x1()), opt, amp::ScaleLossOptions().delay_unscale(true)).backward(); }
  EXPECT_FALSE(amp::master_params(opt)[0].grad().defined());
  EXPECT_TRUE(torch::equal(model->native.grad(), x1() * 8));
  { amp::scale_loss(net->forward(x2()), opt).backward(); }
  EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), x1() + x2()));
  EXPECT_TRUE(torch::equal(model->native.grad(), x1() + x2()));
}

TEST_F(ScaleLoss, DelayedPassesAfterAnUnscaledOneAddToItOnce) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  { amp::scale_loss(net->forward(x1()), opt, amp::ScaleLossOptions().delay_unscale(true)).backward(); }
  { amp::scale_loss(net->forward(x2()), opt).backward(); }
  EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), x1() + x1() + x2()));
  EXPECT_TRUE(torch::equal(model->native.grad(), x1() + x1() + x2()));
}

TEST_F(ScaleLoss, Sl04TheShortCutLeavesGradientsUnchanged) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O3", quiet());
  std::vector<std::string> before;
  std::vector<int64_t> versions;
  {
    auto scaled = amp::scale_loss(net->forward(features()).sum(), opt);
    EXPECT_EQ(amp::loss_scaler().loss_scale(), 1.0);
    scaled.backward();
    for (const Tensor& param : model->parameters()) {
      before.push_back(bytes_of(param.grad()));
      versions.push_back(param.grad()._version());
    }
  }
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(bytes_of(model->parameters()[i].grad()), before[i]) << i;
    EXPECT_EQ(model->parameters()[i].grad()._version(), versions[i]) << i;
  }
  EXPECT_EQ(amp::loss_scaler().updates(), 0) << "no check, no count";
  EXPECT_EQ(amp::loss_scaler().unskipped(), 0);
}

// A graph that create_graph made may hold the gradients; autograd refuses it once they have been written.
TEST_F(ScaleLoss, AFixedScaleOfOneIsCheckedWithoutWritingGradients) {
  for (const char* level : {"O0", "O3"}) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(1.0).skip_nonfinite(true));
    int64_t version = 0;
    {
      auto scaled = amp::scale_loss(net->forward(features()).sum(), opt);
      scaled.backward();
      version = model->fc1->weight.grad()._version();
    }
    EXPECT_EQ(amp::loss_scaler().updates(), 1);
    EXPECT_EQ(model->fc1->weight.grad()._version(), version) << level;
  }
}

TEST_F(ScaleLoss, Sl10DelayedOverflowCheckNeitherSkipsNorCounts) {
  Dot model;
  auto [net, opt] = dot_at_o2(model, quiet().loss_scale("dynamic"));
  { amp::scale_loss(net->forward(x1() * 1e5), opt, amp::ScaleLossOptions().delay_overflow_check(true)).backward(); }
  EXPECT_EQ(amp::loss_scaler().loss_scale(), 65536.0);
  EXPECT_EQ(amp::loss_scaler().updates(), 0);
  opt.step();
  EXPECT_FALSE(amp::step_result(opt).skipped);
}

TEST_F(ScaleLoss, LossIdChoosesTheScaler) {
  Dot model;
  auto [net, opt] = dot_at_o2(model, quiet().num_losses(2));
  const auto overflow = [&](int64_t id) { amp::scale_loss(net->forward(x1() * 1e30), opt, id).backward(); };
  overflow(1);
  EXPECT_EQ(amp::loss_scaler(0).loss_scale(), 65536.0);
  EXPECT_EQ(amp::loss_scaler(1).loss_scale(), 32768.0);
}

TEST_F(ScaleLoss, Sl11TheSkipSurvivesLaterCleanPasses) {
  Dot model;
  auto [net, opt] = dot_at_o2(model, quiet().loss_scale("dynamic"));
  const auto before = bytes_of(*model);
  { amp::scale_loss(net->forward(x1() * 1e30), opt).backward(); }
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  opt.step();
  EXPECT_TRUE(amp::step_result(opt).skipped);
  EXPECT_EQ(bytes_of(*model), before);
  opt.zero_grad();
  amp::loss_scaler().restore(8.0, 0);
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  opt.step();
  EXPECT_FALSE(amp::step_result(opt).skipped) << "once only";
  EXPECT_NE(bytes_of(*model), before);
}

TEST_F(ScaleLoss, Sl16OptimizersOfOneBlockSkipTogetherOthersDoNot) {
  Dot a, b;
  torch::optim::SGD oa(a->parameters(), 0.5), ob(b->parameters(), 0.5);
  auto [nets, opts] = amp::initialize(std::tie(a, b), std::tie(oa, ob), "O2", quiet().num_losses(2));
  auto& [opt_a, opt_b] = opts;
  { amp::scale_loss(std::get<0>(nets)->forward(x1() * 1e30), {opt_a, opt_b}).backward(); }
  opt_a.step();
  opt_b.step();
  EXPECT_TRUE(amp::step_result(opt_a).skipped);
  EXPECT_TRUE(amp::step_result(opt_b).skipped);
  for (int64_t id : {0, 1}) amp::loss_scaler(id).restore(8.0, 0);  // x1 itself does not overflow
  { amp::scale_loss(std::get<0>(nets)->forward(x1() * 1e30), opt_a, 0).backward(); }
  { amp::scale_loss(std::get<1>(nets)->forward(x1()), opt_b, 1).backward(); }
  opt_a.step();
  opt_b.step();
  EXPECT_TRUE(amp::step_result(opt_a).skipped);
  EXPECT_FALSE(amp::step_result(opt_b).skipped);
}

TEST_F(ScaleLoss, Sl14AnExceptionInTheBlockRestoresEarlierGradients) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  EXPECT_TRUE(contains(message_of([&, net = net, &opt = opt]() mutable {
                         auto scaled = amp::scale_loss(net->forward(x2()), opt);
                         scaled.backward();
                         throw std::runtime_error("user's own");
                       }),
                       "user's own"));
  EXPECT_TRUE(torch::equal(model->native.grad(), x1()));
  EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), x1()));
  opt.step();
  EXPECT_TRUE(torch::equal(model->native, 1 - 0.5 * x1())) << "training goes on";
}

TEST_F(ScaleLoss, FinishEndsTheBlockAndTheDestructorDoesNothing) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  {
    auto scaled = amp::scale_loss(net->forward(x1()), opt);
    scaled.backward();
    scaled.finish();
    scaled.finish();
    EXPECT_TRUE(torch::equal(model->native.grad(), x1()));
  }
  EXPECT_TRUE(torch::equal(model->native.grad(), x1()));
  EXPECT_EQ(amp::loss_scaler().unskipped(), 1);
}

TEST_F(ScaleLoss, GuardsMayBeMoved) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  {
    auto outer = [&, net = net]() mutable {
      auto scaled = amp::scale_loss(net->forward(x1()), opt);
      return scaled;
    }();
    outer.backward();
  }
  EXPECT_TRUE(torch::equal(model->native.grad(), x1()));
}

// ---- after every form of zero_grad the next step is correct ----

enum class Zero { handle, handle_in_place, through_base, model, model_in_place };
struct ZeroCase {
  Zero how;
  const char* level;
  bool delayed;
};
class ZeroGrad : public AmpTest, public ::testing::WithParamInterface<ZeroCase> {};

/// Every form except the documented one: with masters, the base class's zero_grad misses gradients that are not yet unscaled.
std::vector<ZeroCase> zero_cases() {
  std::vector<ZeroCase> cases;
  for (Zero how : {Zero::handle, Zero::handle_in_place, Zero::through_base, Zero::model, Zero::model_in_place}) {
    for (const char* level : {"O0", "O2", "O3", "O5", "O6"}) {
      for (bool delayed : {false, true}) {
        const bool masters = std::string(level) == "O2" || std::string(level) >= "O5";
        if (!(how == Zero::through_base && delayed && masters)) cases.push_back({how, level, delayed});
      }
    }
  }
  return cases;
}

TEST_P(ZeroGrad, DiscardsAPassCompletely) {
  const auto [how, level, delayed] = GetParam();
  Dot model;
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
  torch::optim::Optimizer& base = opt;
  { amp::scale_loss(net->forward(x2()), opt, amp::ScaleLossOptions().delay_unscale(delayed)).backward(); }
  switch (how) {
    case Zero::handle:
      opt.zero_grad();
      break;
    case Zero::handle_in_place:
      opt.zero_grad(false);
      break;
    case Zero::through_base:
      base.zero_grad();
      break;
    case Zero::model:
      net->zero_grad();
      break;
    case Zero::model_in_place:
      model->zero_grad(false);
      break;
  }
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  opt.step();
  const Tensor expected = 1 - 0.5 * x1();
  EXPECT_TRUE(torch::equal(model->half.to(torch::kFloat), expected)) << model->half;
  EXPECT_TRUE(torch::equal(model->native.to(torch::kFloat), expected)) << model->native;
}
INSTANTIATE_TEST_SUITE_P(Forms, ZeroGrad, ::testing::ValuesIn(zero_cases()));

// ---- clipping ----

TEST_F(ScaleLoss, ClipGradNormScalesMastersToTheNorm) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  { amp::scale_loss(net->forward(x2()), opt).backward(); }
  const double expected = std::sqrt(2.0) * x2().to(torch::kDouble).norm().item<double>();
  EXPECT_TRUE(std::isnan(amp::step_result(opt).grad_norm)) << "nothing was clipped yet";
  // The norm is a float32: half an ulp each for the squares, the sum of 6 and the root.
  const double norm = amp::clip_grad_norm_(opt, 1.0);
  EXPECT_NEAR(norm, expected, expected * 8 * 6e-8);
  EXPECT_EQ(amp::step_result(opt).grad_norm, norm);
  const auto masters = amp::master_params(opt);
  const double after = std::sqrt(masters[0].grad().pow(2).sum().item<double>() + masters[1].grad().pow(2).sum().item<double>());
  // The divisor is the norm plus 1e-6. A dozen roundings of 2^-24 follow.
  EXPECT_NEAR(after, 1.0, 1e-6 / expected + 12 * 0x1p-24);
  opt.step();
  EXPECT_EQ(amp::step_result(opt).grad_norm, norm) << "a step keeps it";
}

// A program that clips with torch's own function trains the same. There are enough values that the order of the sum matters.
TEST_F(ScaleLoss, ClipGradNormMatchesTorchBitwiseForFloat32Gradients) {
  for (const char* level : {"O0", "O1", "O2", "O4", "O5", "O6"}) {
    for (const double max_norm : {0.5, 1e6}) {
      Mlp model(300, 200);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
      { amp::scale_loss(net->forward(torch::randn({16, 300})).to(torch::kFloat).square().sum(), opt).backward(); }
      std::vector<Tensor> params;
      for (const Tensor& param : amp::master_params(opt)) {
        ASSERT_EQ(param.scalar_type(), torch::kFloat);
        params.push_back(param.detach().clone());
        params.back().mutable_grad() = param.grad().clone();
      }
      EXPECT_EQ(amp::clip_grad_norm_(opt, max_norm), torch::nn::utils::clip_grad_norm_(params, max_norm)) << level;
      const auto got = amp::master_params(opt);
      for (size_t i = 0; i < params.size(); ++i) EXPECT_EQ(bytes_of(got[i].grad()), bytes_of(params[i].grad())) << level;
    }
  }
}

// A coefficient of 0 would make NaN of the Inf, and zeros of the others.
TEST_F(ScaleLoss, ClipGradNormLeavesGradientsWithoutAFiniteNorm) {
  for (const double spoiled : {double{kInf}, double{kNan}}) {
    Dot model;
    auto [net, opt] = dot_at_o2(model);
    const Tensor x = torch::tensor({1.0, -2.0, spoiled});
    { amp::scale_loss(net->forward(x), opt).backward(); }
    EXPECT_FALSE(std::isfinite(amp::clip_grad_norm_(opt, 0.5)));
    for (const Tensor& param : amp::master_params(opt)) {
      EXPECT_TRUE(torch::allclose(param.grad(), x, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true)) << param.grad();
    }
    opt.step();
    EXPECT_TRUE(torch::equal(model->native.slice(0, 0, 2), torch::tensor({0.5, 2.0}))) << model->native;
  }
}

TEST_F(ScaleLoss, ClipGradNormLeavesASmallNormAndTorchsFunctionWorksOnMasters) {
  Dot model;
  auto [net, opt] = dot_at_o2(model);
  { amp::scale_loss(net->forward(x1()), opt).backward(); }
  amp::clip_grad_norm_(opt, 100.0);
  EXPECT_TRUE(torch::equal(model->native.grad(), x1()));
  torch::nn::utils::clip_grad_norm_(amp::master_params(opt), 0.5);
  EXPECT_LT(model->native.grad().norm().item<double>(), 0.5);
}

}  // namespace
}  // namespace apex::test
