// The weight-cast cache (CACHE-01 to CACHE-09), with the repairs for stale results (BUG-01, BUG-02).
#include <apex_cpp/amp/casts/cast_rules.h>

#include <ATen/core/grad_mode.h>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

using amp::detail::WeightCache;

Tensor weight_of(std::vector<int64_t> sizes = {4, 3}) { return torch::randn(sizes).requires_grad_(); }

struct WeightCacheTest : AmpTest {
  WeightCache cache;
  Tensor weight = weight_of();
  bool hit = false;
  void SetUp() override {
    AmpTest::SetUp();
    cache.keep(weight);
  }
  Tensor cast(at::ScalarType dtype = torch::kHalf, uint64_t forward = 1) {
    return cache.cast(weight, dtype, forward, hit, [] { return true; });
  }
};

TEST_F(WeightCacheTest, ASecondUseSharesTheCastNode) {  // CACHE-08
  const Tensor first = cast();
  EXPECT_FALSE(hit);
  const Tensor second = cast();
  EXPECT_TRUE(hit);
  EXPECT_TRUE(first.is_same(second));
  (first.sum() + second.sum()).backward();
  EXPECT_EQ(weight.grad().dtype(), torch::kFloat);
  EXPECT_TRUE(torch::equal(weight.grad(), torch::full({4, 3}, 2.0)));
}

TEST_F(WeightCacheTest, EveryDtypeHasItsOwnEntry) {
  EXPECT_EQ(cast(torch::kHalf).dtype(), torch::kHalf);
  EXPECT_EQ(cast(torch::kBFloat16).dtype(), torch::kBFloat16);
  EXPECT_FALSE(hit);
  EXPECT_EQ(cast(torch::kHalf).dtype(), torch::kHalf);
  EXPECT_TRUE(hit);
}

TEST_F(WeightCacheTest, AnInPlaceWriteIsDetected) {  // BUG-01
  cast();
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(2.0);
  }
  EXPECT_TRUE(torch::equal(cast(), torch::full({4, 3}, 2.0).to(torch::kHalf)));
  EXPECT_FALSE(hit);
}

TEST_F(WeightCacheTest, ReplacedDataIsDetected) {  // BUG-02: the accumulator is another one, too
  cast();
  weight.set_data(torch::full({4, 3}, 3.0));
  const Tensor now = cast();
  EXPECT_FALSE(hit);
  EXPECT_TRUE(torch::equal(now, torch::full({4, 3}, 3.0).to(torch::kHalf)));
  now.sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::ones({4, 3})));
}

// As with parameters in one flat buffer: storage and version stay the same.
TEST_F(WeightCacheTest, ReplacedDataInTheSameStorageIsDetected) {
  const Tensor flat = torch::arange(64, torch::kFloat);
  const auto expect_present = [&](const char* what, const Tensor& data) {
    weight.set_data(data);
    for (const uint64_t forward : {1, 2}) {
      const Tensor now = cast(torch::kHalf, forward);
      EXPECT_EQ(now.sizes(), data.sizes()) << what;
      EXPECT_TRUE(torch::equal(now, data.to(torch::kHalf))) << what << ", forward " << forward;
    }
  };
  expect_present("first", flat.narrow(0, 0, 16).view({4, 4}));
  expect_present("offset", flat.narrow(0, 16, 16).view({4, 4}));
  expect_present("sizes", flat.narrow(0, 16, 8).view({4, 2}));
  expect_present("strides", flat.narrow(0, 16, 8).view({2, 4}).t());
  expect_present("more dimensions", flat.narrow(0, 16, 8).view({2, 1, 2, 1, 2, 1}));
}

TEST_F(WeightCacheTest, AnEntryMadeWithoutGradientsIsReplacedForTraining) {  // CACHE-05, CACHE-06
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(cast().requires_grad());
  }
  EXPECT_TRUE(cast().requires_grad());
  EXPECT_FALSE(hit);
  const torch::NoGradGuard no_grad;
  cast();
  EXPECT_TRUE(hit) << "without gradients either entry serves";
}

TEST_F(WeightCacheTest, FreezingAWeightReplacesItsEntry) {  // CACHE-05
  cast();
  weight.requires_grad_(false);
  EXPECT_FALSE(cast().requires_grad());
  EXPECT_FALSE(hit);
}

TEST_F(WeightCacheTest, ALaterForwardPassRefreshesTheValuesOfTheSameCastNode) {
  const Tensor first = cast(torch::kHalf, 1);
  weight.data().fill_(2.0);  // leaves no trace
  EXPECT_TRUE(torch::equal(cast(torch::kHalf, 2), torch::full({4, 3}, 2.0).to(torch::kHalf)));
  EXPECT_TRUE(hit);
  EXPECT_TRUE(first.is_same(cast(torch::kHalf, 3)));
}

TEST_F(WeightCacheTest, WeightsOutsideAmpsOptimizersAreCachedForOneForwardPassOnly) {
  const Tensor other = weight_of();
  const auto is_there = [&](uint64_t forward) {
    bool found = false;
    cache.cast(other, torch::kHalf, forward, found, [] { return true; });
    return found;
  };
  EXPECT_FALSE(is_there(1));
  EXPECT_TRUE(is_there(1));
  EXPECT_FALSE(is_there(2));
  EXPECT_FALSE(is_there(0));
  EXPECT_FALSE(is_there(0)) << "outside of a handle's forward it is never kept";
}

TEST_F(WeightCacheTest, ClearForgetsEverything) {
  cast();
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  cast();
  EXPECT_FALSE(hit);
}

TEST_F(WeightCacheTest, EntriesOfDestroyedTensorsAreDropped) {  // BUG-09
  const torch::NoGradGuard no_grad;                             // a recorded cast would keep its weight alive
  for (int i = 0; i < 2000; ++i) {
    bool ignored = false;
    cache.cast(weight_of({2}), torch::kHalf, 1, ignored, [] { return true; });
  }
  EXPECT_LE(cache.size(), 512u);
}

TEST_F(WeightCacheTest, ANewTensorAtAReusedAddressIsNotAHit) {
  const torch::NoGradGuard no_grad;
  for (int i = 0; i < 200; ++i) {
    const Tensor fresh = torch::full({2}, static_cast<double>(i)).requires_grad_();
    bool found = true;
    const Tensor result = cache.cast(fresh, torch::kHalf, 1, found, [] { return true; });
    ASSERT_FALSE(found);
    ASSERT_EQ(result[0].item<double>(), i);
  }
}

// ---- through initialize ----

struct CacheInTraining : AmpTest {
  Mlp model;
  torch::optim::SGD optimizer{model->parameters(), 0.5};

  static size_t hits(const amp::trace& trace) {
    size_t count = 0;
    for (const auto& op : trace.ops()) count += static_cast<size_t>(op.cache_hits());
    return count;
  }
};

TEST_F(CacheInTraining, TwoUsesInOneIterationCastOnce) {
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet());
  const amp::trace trace;
  const Tensor a = net->forward(features());
  EXPECT_EQ(hits(trace), 0u);
  const Tensor b = net->forward(features());
  EXPECT_EQ(hits(trace), 4u) << trace;  // two weights, two biases
  EXPECT_TRUE(torch::equal(a, b));
}

TEST_F(CacheInTraining, TheEndOfScaleLossClears) {  // SL-13, CACHE-07
  for (const char* level : {"O1", "O4"}) {          // dynamic and, with its scale of 1, the short cut (SL-04)
    Mlp other;
    torch::optim::SGD sgd(other->parameters(), 0.5);
    auto [net, opt] = amp::initialize(other, sgd, level, quiet());
    for (const bool delay : {false, true}) {
      const Tensor loss = net->forward(features()).sum();
      {
        auto scaled = amp::scale_loss(loss, opt, amp::ScaleLossOptions().delay_unscale(delay));
        scaled.backward();
      }
      const amp::trace trace;
      net->forward(features());
      EXPECT_EQ(hits(trace), 0u) << level << " delay " << delay;
    }
    amp::reset();
  }
}

TEST_F(CacheInTraining, ZeroGradAndTheStartOfScaleLossClear) {
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet().loss_scale(2.0));
  auto hits_of_a_forward = [&, amped = net]() mutable {
    const amp::trace trace;
    amped->forward(features());
    return hits(trace);
  };
  const Tensor loss = net->forward(features()).sum();
  opt.zero_grad();
  EXPECT_EQ(hits_of_a_forward(), 0u);
  EXPECT_EQ(hits_of_a_forward(), 4u);
  auto scaled = amp::scale_loss(loss, opt);
  EXPECT_EQ(hits_of_a_forward(), 0u);
  scaled.backward();
}

TEST_F(CacheInTraining, AStepClearsEvenWithoutScaleLoss) {
  auto [net, opt] = amp::initialize(model, optimizer, "O4", quiet());
  const Tensor before = net->forward(features());
  before.sum().backward();
  opt.step();  // SGD writes in a way that the version counter does not show
  const Tensor after = net->forward(features());
  EXPECT_FALSE(torch::equal(before, after));
}

TEST_F(CacheInTraining, EvaluationSeesChangedWeights) {  // BUG-01
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet());
  const torch::NoGradGuard no_grad;
  for (auto* forward : {+[](amp::Model<Mlp>&amped, Mlp&) { return amped->forward(features()); },
                        +[](amp::Model<Mlp>&, Mlp&original) { return original->forward(features()); }}) {
    forward(net, model);
    for (auto& p : model->parameters()) p.data().fill_(0.25);  // leaves no trace
    const Tensor got = forward(net, model);
    Tensor hidden = torch::relu(
        torch::linear(features().to(torch::kHalf), model->fc1->weight.to(torch::kHalf), model->fc1->bias.to(torch::kHalf)));
    amp::disable_casts casts_off;
    const Tensor want = torch::linear(hidden, model->fc2->weight.to(torch::kHalf), model->fc2->bias.to(torch::kHalf));
    // Values are below 1. Two layers' products and their sums with the bias are rounded to FP16, by 2^-12 each, on either side.
    EXPECT_TRUE(torch::allclose(got.to(torch::kFloat), want.to(torch::kFloat), 0, 8 * 0x1p-12));
    for (auto& p : model->parameters()) p.data().normal_();
  }
}

TEST_F(CacheInTraining, EvaluationSharesCastsWithinOneForwardOnly) {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl() { fc = register_module("fc", torch::nn::Linear(6, 6)); }
    Tensor forward(Tensor x) { return fc(fc(x)); }
    torch::nn::Linear fc{nullptr};
  };
  torch::nn::ModuleHolder<TwiceImpl> twice(std::make_shared<TwiceImpl>());
  auto net = amp::initialize(twice, "O1", quiet());
  const torch::NoGradGuard no_grad;
  for (int i = 0; i < 2; ++i) {
    const amp::trace trace;
    net->forward(features());
    EXPECT_EQ(hits(trace), 2u) << trace;
  }
}

TEST_F(CacheInTraining, FrozenParametersOfTheModelAreCached) {  // CACHE-02: a Parameter need not require grad
  for (auto& p : model->parameters()) p.requires_grad_(false);
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet());
  net->forward(features());
  const amp::trace trace;
  net->forward(features());
  EXPECT_EQ(hits(trace), 4u) << trace;
}

/// `weight.t()` counts as the weight only if gradients flow through it as through any transpose.
TEST_F(CacheInTraining, GradientsThroughDetachedOrHookedViewsAreAsWithoutAmp) {
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet());
  const Tensor weight = model->fc1->weight, ones = torch::ones({2, weight.size(1)});
  Tensor stopped;
  {
    const torch::NoGradGuard no_grad;
    stopped = weight.t();
  }
  torch::mm(ones, stopped).sum().backward();
  EXPECT_FALSE(weight.grad().defined());
  const Tensor hooked = weight.t(), kept = weight.t(), plain = weight.t();
  hooked.register_hook([](const Tensor& grad) { return grad * 0; });
  kept.retain_grad();
  torch::mm(ones, hooked).sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::zeros_like(weight)));
  torch::mm(ones, kept).sum().backward();
  EXPECT_TRUE(kept.grad().defined());
  const Tensor between = weight.view_as(weight);
  between.register_hook([](const Tensor& grad) { return grad * 0; });
  weight.mutable_grad().zero_();
  torch::mm(ones, between.t()).sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::zeros_like(weight)));
  torch::mm(ones, plain).sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::full_like(weight, 2)));
}

// As of a physics-informed network, whose points lie in rows.
TEST_F(CacheInTraining, ATransposedInputMayBeAskedForItsGradient) {
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet());
  const Tensor rows = features().t().contiguous().requires_grad_(), points = rows.t();
  const Tensor sum = net->forward(points).to(torch::kFloat).sum();
  bool called = false;
  points.register_hook([&called](const Tensor&) { called = true; });
  EXPECT_TRUE(torch::autograd::grad({sum}, {points}, {}, /*retain_graph=*/true)[0].any().item<bool>());
  EXPECT_TRUE(called);
}

// As in adversarial training and saliency maps. A cast holds the input by autograd's graph.
TEST_F(CacheInTraining, InputsThatRequireGradAreFreed) {
  for (const bool with_optimizer : {false, true}) {
    auto net =
        with_optimizer ? std::get<0>(amp::initialize(model, optimizer, "O1", quiet())) : amp::initialize(model, "O1", quiet());
    Tensor x = features().clone().requires_grad_();
    const c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> input(x.getIntrusivePtr());
    torch::autograd::grad({net->forward(x).sum()}, {x});
    x = Tensor();
    EXPECT_TRUE(input.expired()) << with_optimizer;
    amp::reset();
  }
}

struct SamplerImpl : torch::nn::Module {
  Tensor forward(Tensor x) {
    std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> inputs;
    for (int step = 0; step < 3; ++step) {
      x = x.detach().requires_grad_();
      inputs.emplace_back(x.getIntrusivePtr());
      x = (x - torch::autograd::grad({energy(x).sum()}, {x})[0]).detach();
    }
    alive = std::count_if(inputs.begin(), inputs.end(), [](const auto& each) { return !each.expired(); });
    return x;
  }
  torch::nn::Linear energy = register_module("energy", torch::nn::Linear(6, 1));
  int64_t alive = -1;
};
TORCH_MODULE(Sampler);

// As in Langevin sampling, where each step's input is a leaf.
TEST_F(CacheInTraining, InputsThatRequireGradAreFreedWithinAForward) {
  auto net = amp::initialize(Sampler(), "O1", quiet());
  net->forward(features());
  EXPECT_EQ(net->alive, 0);
}

struct AroundImpl : torch::nn::Module {
  explicit AroundImpl(std::function<Tensor(const Tensor&)> f) : inner(std::move(f)) {}
  Tensor forward(const Tensor& x) { return inner(x); }
  std::function<Tensor(const Tensor&)> inner;
};
TORCH_MODULE(Around);

TEST_F(CacheInTraining, InputsOfAHandleWithinAnotherSessionsForwardAreFreed) {
  auto part = amp::initialize(model, "O1", quiet());
  Around around([part](const Tensor& x) mutable { return part->forward(x); });
  auto net = amp::initialize(around, "O1", quiet());
  Tensor x = features().clone().requires_grad_();
  const c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> input(x.getIntrusivePtr());
  torch::autograd::grad({net->forward(x).sum()}, {x});
  x = Tensor();
  EXPECT_TRUE(input.expired());
}

// A later call trains the same weights; the original's forward uses its rules.
TEST_F(CacheInTraining, AStepOfAnEarlierCallsOptimizerIsSeenByTheOriginal) {
  torch::optim::SGD second(model->parameters(), 0.5);
  Mlp original = model;
  auto [net, opt] = amp::initialize(model, optimizer, "O4", quiet());
  auto [net2, opt2] = amp::initialize(model, second, "O4", quiet());
  Mlp baseline;
  const auto without_amp = amp::initialize(baseline, "O4", quiet().enabled(false));  // leaves the thread's casts on
  const Tensor before = original->forward(features());
  { amp::scale_loss(before.sum(), opt).backward(); }
  opt.step();
  EXPECT_FALSE(torch::equal(original->forward(features()), before));
}

TEST_F(CacheInTraining, ActivationsAreNeverCached) {
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor x = features();
  const amp::trace trace;
  torch::mm(x, x.t());
  torch::mm(x, x.t());
  EXPECT_EQ(hits(trace), 0u) << trace;
}

TEST_F(CacheInTraining, GradientsEqualThoseOfCastsByHand) {
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor x = features();
  const auto gradients = [&](const Tensor& loss) { return torch::autograd::grad({loss}, model->parameters()); };
  const auto got = gradients(torch::mse_loss(net->forward(x), torch::zeros({4, 3})));
  amp::reset();
  const auto half = [](const Tensor& t) { return t.to(torch::kHalf); };
  const auto linear = [&](const Tensor& in, torch::nn::Linear& fc) {
    return torch::addmm(half(fc->bias), half(in), half(fc->weight).t());
  };
  const Tensor out = linear(torch::relu(linear(x, model->fc1)), model->fc2);
  const auto want = gradients(torch::mse_loss(out.to(torch::kFloat), torch::zeros({4, 3})));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
}

}  // namespace
}  // namespace apex::test
