// When casts are on: threads, handles, backward passes, optimizer steps, guards (SL-20, INIT-20, O1-02).
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <thread>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

// The result dtype of a listed operator when called now.
at::ScalarType mm_type() { return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(); }

template <class F>
at::ScalarType on_another_thread(F&& f) {
  at::ScalarType type = torch::kLong;
  std::thread([&] { type = f(); }).join();
  return type;
}

struct CastScope : AmpTest {
  Mlp model;
  torch::optim::SGD optimizer{model->parameters(), 0.1};
};

TEST_F(CastScope, OnForTheCallingThreadUntilReset) {
  EXPECT_EQ(mm_type(), torch::kFloat);
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet());
  EXPECT_EQ(mm_type(), torch::kHalf);
  EXPECT_EQ(on_another_thread(mm_type), torch::kFloat);
  amp::reset();
  EXPECT_EQ(mm_type(), torch::kFloat);
}

TEST_F(CastScope, ResetOnAnotherThreadEndsCastsHere) {
  auto net = amp::initialize(model, "O1", quiet());
  std::thread([] { amp::reset(); }).join();
  EXPECT_EQ(mm_type(), torch::kFloat);
}

TEST_F(CastScope, TheNewestInitializeApplies) {  // BUG-08: casts are not applied twice
  auto first = amp::initialize(model, "O1", quiet());
  Mlp second_model, third_model;
  auto second = amp::initialize(second_model, "O4", quiet());
  EXPECT_EQ(mm_type(), torch::kBFloat16);
  EXPECT_EQ(first->forward(features()).dtype(), torch::kHalf) << "a handle keeps its own";
  EXPECT_EQ(mm_type(), torch::kBFloat16);
  auto third = amp::initialize(third_model, "O0", quiet());
  EXPECT_EQ(mm_type(), torch::kFloat);
  EXPECT_EQ(second->forward(features()).dtype(), torch::kBFloat16);
}

TEST_F(CastScope, ADisabledInitializeDoesNotChangeTheThread) {
  auto net = amp::initialize(model, "O1", quiet());
  Mlp other;
  auto same = amp::initialize(other, "O1", quiet().enabled(false));
  EXPECT_EQ(mm_type(), torch::kHalf);
}

TEST_F(CastScope, ADisabledInitializeEndsCastsOfDestroyedModels) {
  {
    Mlp gone;
    auto net = amp::initialize(gone, "O1", quiet());
  }
  EXPECT_EQ(mm_type(), torch::kHalf);
  auto same = amp::initialize(model, "O1", quiet().enabled(false));
  EXPECT_EQ(mm_type(), torch::kFloat);
  EXPECT_EQ(same->forward(features()).scalar_type(), torch::kFloat);
}

TEST_F(CastScope, DisableCastsAppliesInsideCompositeOperators) {
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor half = torch::ones({2, 3}, torch::kHalf);
  const amp::disable_casts off;
  EXPECT_EQ(torch::logsumexp(half, 1).scalar_type(), torch::kHalf) << "in whose inside exp_ is called";
}

TEST_F(CastScope, AHandleCastsOnAnyThread) {  // MODEL-06: outputs stay 16-bit
  auto net = amp::initialize(model, "O1", quiet());
  EXPECT_EQ(on_another_thread([&] { return net->forward(features()).scalar_type(); }), torch::kHalf);
  EXPECT_EQ(on_another_thread([&] { return model->forward(features()).scalar_type(); }), torch::kFloat);
}

// ---- other threads: after a handle's forward, or with the guard ----

TEST_F(CastScope, AHandlesForwardTurnsCastsOnForItsThread) {
  auto net = amp::initialize(model, "O1", quiet());
  std::thread([&] {
    EXPECT_EQ(mm_type(), torch::kFloat) << "no handle has run here";
    net->forward(features());
    EXPECT_EQ(mm_type(), torch::kHalf);
    EXPECT_EQ(model->forward(features()).dtype(), torch::kHalf) << "the original too";
    Mlp second_model;
    std::thread([&] { auto second = amp::initialize(second_model, "O4", quiet()); }).join();
    EXPECT_EQ(mm_type(), torch::kBFloat16) << "by the newest rules, as the thread has none of its own";
    amp::reset();
    EXPECT_EQ(mm_type(), torch::kFloat);
  }).join();
}

TEST_F(CastScope, AHandleWithoutCastsDoesNotChangeItsThread) {
  auto net = amp::initialize(model, "O1", quiet());
  Mlp other;
  auto plain = amp::initialize(other, "O0", quiet());
  const auto after = [](auto& handle) {
    handle->forward(features());
    return mm_type();
  };
  EXPECT_EQ(on_another_thread([&] { return after(plain); }), torch::kFloat);
  EXPECT_EQ(on_another_thread([&] { return after(net); }), torch::kFloat) << "the newest initialize asked for no casts";
}

TEST_F(CastScope, AHandleInAParallelRegionDoesNotChangeItsThreads) {
  if (at::get_num_threads() < 2) GTEST_SKIP() << "needs two threads: with one there is no parallel region";
  auto net = amp::initialize(model, "O1", quiet());
  const auto types_in_region = [](auto&& f) {
    std::vector<at::ScalarType> types(4, torch::kLong);
    at::parallel_for(0, 4, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) types[i] = f();
    });
    return types;
  };
  std::vector<at::ScalarType> during, after;
  std::thread([&] {
    during = types_in_region([&] { return net->forward(features()).scalar_type(); });
    after = types_in_region(mm_type);
  }).join();
  EXPECT_EQ(during, std::vector<at::ScalarType>(4, torch::kHalf));
  EXPECT_EQ(after, std::vector<at::ScalarType>(4, torch::kFloat));
}

TEST_F(CastScope, EnableCastsUsesTheNewestRulesOnAnyThreadAndRestores) {
  auto net = amp::initialize(model, "O1", quiet());
  std::thread([&] {
    {
      const amp::enable_casts on;
      EXPECT_EQ(mm_type(), torch::kHalf);
      EXPECT_EQ(model->forward(features()).dtype(), torch::kHalf);
      {
        const amp::disable_casts off;
        EXPECT_EQ(mm_type(), torch::kFloat);
        const amp::enable_casts on_again;
        EXPECT_EQ(mm_type(), torch::kHalf);
      }
      try {
        const amp::enable_casts inner;
        throw std::runtime_error("as intended");
      } catch (const std::runtime_error&) {
      }
      EXPECT_EQ(mm_type(), torch::kHalf);
    }
    EXPECT_EQ(mm_type(), torch::kFloat);
  }).join();
}

TEST_F(CastScope, EnableCastsKeepsTheRulesOfTheThreadsOwnInitialize) {
  auto net = amp::initialize(model, "O1", quiet());
  Mlp other;
  std::thread([&] { auto newer = amp::initialize(other, "O4", quiet()); }).join();
  const amp::disable_casts off;
  const amp::enable_casts on;
  EXPECT_EQ(mm_type(), torch::kHalf);
}

TEST_F(CastScope, EnableCastsLeavesRulesThatAnotherThreadHasReset) {
  struct EnablesImpl : torch::nn::Module {
    Tensor forward(const Tensor& x) {
      const amp::enable_casts on;
      return torch::mm(x, x.t());
    }
  };
  torch::nn::ModuleHolder<EnablesImpl> enables(std::make_shared<EnablesImpl>());
  auto net = amp::initialize(enables, "O1", quiet());
  std::thread([&] {
    amp::reset();
    auto newer = amp::initialize(model, "O4", quiet());
  }).join();
  EXPECT_EQ(mm_type(), torch::kFloat);
  {
    const amp::enable_casts on;
    EXPECT_EQ(mm_type(), torch::kBFloat16) << "by the newest rules";
  }
  EXPECT_EQ(net->forward(features()).scalar_type(), torch::kHalf) << "within a handle's forward its own stay";
}

TEST_F(CastScope, EnableCastsWithoutCastsDoesNothing) {
  {
    const amp::enable_casts before;
    EXPECT_EQ(mm_type(), torch::kFloat);
  }
  auto net = amp::initialize(model, "O0", quiet());
  const amp::enable_casts after;
  EXPECT_EQ(mm_type(), torch::kFloat);
}

TEST_F(CastScope, EnableCastsWorksForTheOriginalAtO2) {
  auto net = amp::initialize(model, "O2", quiet());
  const auto forward = [&] {
    const amp::enable_casts on;
    return model->forward(features()).scalar_type();
  };
  EXPECT_EQ(on_another_thread(forward), torch::kHalf);
}

TEST_F(CastScope, AHandleCastsAfterReset) {
  auto net = amp::initialize(model, "O1", quiet());
  amp::reset();
  EXPECT_EQ(net->forward(features()).dtype(), torch::kHalf);
  EXPECT_EQ(mm_type(), torch::kFloat);
}

TEST_F(CastScope, ThreadLocalStateCarriesCasts) {
  auto net = amp::initialize(model, "O1", quiet());
  const at::ThreadLocalState state;
  const auto carried = [&] {
    const at::ThreadLocalStateGuard guard(state);
    return mm_type();
  };
  EXPECT_EQ(on_another_thread(carried), torch::kHalf);
}

// The thread has casts, which the program has switched off for a while.
TEST_F(CastScope, AHandlesForwardLeavesCastsOffInAStateFromBeforeInitialize) {
  const at::ThreadLocalState before;
  auto net = amp::initialize(model, "O1", quiet());
  {
    const at::ThreadLocalStateGuard guard(before);
    EXPECT_EQ(net->forward(features()).scalar_type(), torch::kHalf);
    EXPECT_EQ(mm_type(), torch::kFloat);
  }
  EXPECT_EQ(mm_type(), torch::kHalf);
}

TEST_F(CastScope, AThrowingForwardRestoresTheThread) {
  struct ThrowingImpl : torch::nn::Module {
    Tensor forward(Tensor) { throw std::runtime_error("as intended"); }
  };
  torch::nn::ModuleHolder<ThrowingImpl> throwing(std::make_shared<ThrowingImpl>());
  auto net = amp::initialize(throwing, "O1", quiet());
  amp::reset();
  EXPECT_THROW(net->forward(features()), std::runtime_error);
  EXPECT_EQ(mm_type(), torch::kFloat);
}

// ---- disable_casts ----

TEST_F(CastScope, DisableCastsNestsAndSurvivesExceptions) {  // SL-20
  auto net = amp::initialize(model, "O1", quiet());
  {
    const amp::disable_casts outer;
    EXPECT_EQ(mm_type(), torch::kFloat);
    try {
      const amp::disable_casts inner;
      throw std::runtime_error("as intended");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(mm_type(), torch::kFloat);
    EXPECT_EQ(net->forward(features()).dtype(), torch::kFloat) << "as in Apex, a model within it is not cast either";
  }
  EXPECT_EQ(mm_type(), torch::kHalf);
}

TEST_F(CastScope, DisableCastsWithoutO1DoesNothing) {  // in Apex it crashed at O2
  const amp::disable_casts before;
  auto net = amp::initialize(model, "O2", quiet());
  const amp::disable_casts after;
  EXPECT_EQ(net->forward(features()).dtype(), torch::kFloat);
  EXPECT_EQ(model->forward(features()).dtype(), torch::kHalf) << "the original's input follows its weights all the same";
}

TEST_F(CastScope, ErrorsStillApplyWhileCastsAreDisabled) {  // O1-32, O1-40
  auto net = amp::initialize(model, "O1", quiet());
  const amp::disable_casts casts_off;
  Tensor half = torch::full({2}, 0.5).to(torch::kHalf);
  EXPECT_THROW(half.exp_(), c10::NotImplementedError);
  EXPECT_THROW(torch::binary_cross_entropy(half, half), c10::NotImplementedError);
  EXPECT_TRUE(torch::equal(half, torch::full({2}, 0.5).to(torch::kHalf))) << "nothing was written";
  EXPECT_EQ(torch::exp(half).dtype(), torch::kHalf);
}

// A model without casts that calls a handle with casts, on a thread that has had none.
TEST_F(CastScope, AHandlesForwardLeavesCastsOffInsideAnothersForward) {
  using Forward = std::function<Tensor(const Tensor&)>;
  struct OuterImpl : torch::nn::Module {
    explicit OuterImpl(const Forward& forward) : inner(&forward) {}
    Tensor forward(const Tensor& x) { return (*inner)(x); }
    const Forward* inner;
  };
  Forward inner;
  auto outer = std::make_shared<OuterImpl>(inner);
  auto plain = amp::initialize(outer, "O0", quiet());
  auto net = amp::initialize(model, "O1", quiet());
  at::ScalarType inside{}, after{};
  inner = [&](const Tensor& x) {
    const Tensor y = net->forward(x);
    inside = y.scalar_type();
    after = mm_type();
    return y;
  };
  std::thread([&] { plain->forward(features()); }).join();
  EXPECT_EQ(inside, torch::kHalf);
  EXPECT_EQ(after, torch::kFloat);
}

// ---- backward ----

/// Its backward combines the gradient with FP32 tensors by operators that LibTorch does not promote.
struct MixedBackward : torch::autograd::Function<MixedBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list grads) {
    const Tensor grad = grads[0], wide = torch::full({3, 3}, 0.5), rows = torch::arange(3);
    added = torch::zeros({3, 3}).index_add_(0, rows, grad);
    scattered = torch::zeros({3, 3}).scatter_add_(0, rows.unsqueeze(1).expand({3, 3}), grad);
    product = torch::ones({3, 3}).addmm_(grad, wide);
    dot = torch::dot(grad.flatten(), wide.flatten());
    return {grad * 2};
  }
  static inline Tensor added, scattered, product, dot;
};

TEST_F(CastScope, MixesOfTypesInACustomBackwardAreMatched) {
  for (const char* level : {"O1", "O4"}) {
    auto net = amp::initialize(model, level, quiet());
    const auto low = level == std::string("O1") ? torch::kHalf : torch::kBFloat16;
    MixedBackward::apply(torch::ones({3, 3}, low).requires_grad_()).backward(torch::full({3, 3}, 3.0, low));
    EXPECT_TRUE(torch::equal(MixedBackward::added, torch::full({3, 3}, 3.0))) << level;
    EXPECT_TRUE(torch::equal(MixedBackward::scattered, torch::full({3, 3}, 3.0))) << level;
    EXPECT_TRUE(torch::equal(MixedBackward::product, torch::full({3, 3}, 1 + 3 * 3 * 0.5))) << level;
    EXPECT_EQ(MixedBackward::dot.item<double>(), 9 * 3 * 0.5) << level;
    amp::reset();
  }
}

TEST_F(CastScope, BackwardIsNotCast) {
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor loss = net->forward(features()).sum();
  const amp::trace trace;
  loss.backward();
  size_t products = 0;
  for (const auto& op : trace.ops()) {
    EXPECT_TRUE(op.casts.empty()) << op.name;
    products += op.backward && op.name == "aten::mm";
  }
  EXPECT_GT(products, 0u) << trace;
}

// A forward pass that is recomputed inside backward, as activation checkpointing does.
struct Recompute : torch::autograd::Function<Recompute> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, amp::Model<Mlp> net) {
    context->save_for_backward({x});
    context->saved_data["net"] = c10::IValue(reinterpret_cast<int64_t>(net.get()));
    return net->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto* net = reinterpret_cast<amp::Model<Mlp>::Impl*>(context->saved_data["net"].toInt());
    formula_type = mm_type();
    const at::AutoGradMode with_gradients(true);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const Tensor y = net->forward(x);
    inner_type = y.scalar_type();
    outside_type = mm_type();
    y.backward(grads[0]);
    return {x.grad(), {}};
  }
  static inline at::ScalarType formula_type, inner_type, outside_type;
};

TEST_F(CastScope, AHandleCastsWhenItsForwardIsRecomputedInBackward) {
  auto net = amp::initialize(model, "O1", quiet());
  const auto gradients = [&](const Tensor& output) {
    output.sum().backward();
    std::vector<Tensor> result;
    for (auto& p : model->parameters()) {
      result.push_back(p.grad().clone());
      p.mutable_grad().reset();
    }
    return result;
  };
  const auto plain = gradients(net->forward(features()));
  amp::clear_cast_cache();
  const auto again = gradients(Recompute::apply(features().requires_grad_(), net));
  EXPECT_EQ(Recompute::inner_type, torch::kHalf);
  EXPECT_EQ(Recompute::outside_type, torch::kHalf) << "as where the forward pass ran";
  EXPECT_EQ(Recompute::formula_type, torch::kFloat) << "the rest of the backward pass is not cast";
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], again[i])) << i;
}

// ---- optimizer steps ----

struct Watcher : torch::optim::SGD {
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    seen = mm_type();
    return SGD::step(std::move(closure));
  }
  static inline at::ScalarType seen = torch::kLong;
};

TEST_F(CastScope, AnOptimizersStepIsNotCast) {  // INIT-20
  Watcher watcher(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, watcher, "O1", quiet().loss_scale(128.0));
  {
    auto scaled = amp::scale_loss(net->forward(features()).sum(), opt);
    scaled.backward();
  }
  opt.step();
  EXPECT_EQ(Watcher::seen, torch::kFloat);
  EXPECT_EQ(mm_type(), torch::kHalf);
}

// ---- beside torch's autocast ----

TEST_F(CastScope, TorchAutocastAndAmpCanBothBeOn) {
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor x = features();
  const Tensor alone = net->forward(x);
  const Tensor summed = x.sum();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const Tensor both = net->forward(x);
  EXPECT_EQ(both.dtype(), torch::kHalf) << "amp decides for the operators on its lists";
  EXPECT_TRUE(torch::equal(alone, both));
  EXPECT_TRUE(torch::equal(summed, x.sum()));
  {
    const amp::disable_casts casts_off;
    EXPECT_EQ(mm_type(), torch::kBFloat16) << "torch's autocast is in charge where amp is off";
  }
  amp::reset();
  EXPECT_EQ(mm_type(), torch::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(mm_type(), torch::kFloat);
}

}  // namespace
}  // namespace apex::test
