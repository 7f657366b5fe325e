// The guard amp::autocast: the state that it sets and restores, its cache, its errors. After PyTorch's test_autocast.py.
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include <cstring>
#include <thread>

#include "tests/amp/support.h"
#include "tests/amp/warnings.h"
#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

using amp::autocast;
using torch::Tensor;

/// Counts the conversions to another dtype that this thread makes.
class CastCounter {
 public:
  CastCounter() {
    active() = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&CastCounter::count).scopes({at::RecordScope::FUNCTION}));
  }
  ~CastCounter() {
    at::removeCallback(handle_);
    active() = nullptr;
  }
  int take() { return std::exchange(casts_, 0); }

 private:
  static CastCounter*& active() {
    static thread_local CastCounter* counter = nullptr;
    return counter;
  }
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    if (active() && std::strcmp(function.name(), "aten::_to_copy") == 0) ++active()->casts_;
    return nullptr;
  }
  at::CallbackHandle handle_;
  int casts_ = 0;
};

struct Flags {
  bool cpu = amp::is_autocast_enabled("cpu"), cuda = amp::is_autocast_enabled("cuda");
  torch::ScalarType cpu_dtype = amp::get_autocast_dtype("cpu"), cuda_dtype = amp::get_autocast_dtype("cuda");
  bool cache = at::autocast::is_autocast_cache_enabled();

  bool operator==(const Flags& other) const {
    return cpu == other.cpu && cuda == other.cuda && cpu_dtype == other.cpu_dtype && cuda_dtype == other.cuda_dtype &&
           cache == other.cache;
  }
};

Tensor weight() { return torch::randn({4, 4}, torch::requires_grad()); }
torch::ScalarType mm_dtype(const Tensor& a) { return torch::mm(a, a).scalar_type(); }

class Autocast : public AmpTest {};

TEST_F(Autocast, CastsInsideAndRestoresEverything) {
  const Flags before;
  const auto w = weight();
  {
    autocast guard(at::kCPU);
    EXPECT_EQ(mm_dtype(w), torch::kBFloat16);
    EXPECT_EQ(amp::is_autocast_enabled("cuda"), before.cuda) << "one device type only";
  }
  EXPECT_TRUE(Flags() == before);
  EXPECT_EQ(mm_dtype(w), torch::kFloat);
}

TEST_F(Autocast, RestoresWhenAnExceptionUnwinds) {
  const Flags before;
  EXPECT_THROW(
      {
        autocast guard("cpu", torch::kHalf, true, false);
        torch::mm(torch::ones({2, 3}), torch::ones({2, 3}));
      },
      c10::Error);
  EXPECT_TRUE(Flags() == before);
  EXPECT_EQ(at::autocast::increment_nesting(), 1) << "nesting is back at 0, too";
  at::autocast::decrement_nesting();
}

// upstream: test_autocast_nested (nested mixed), test_autocast_fast_dtype
TEST_F(Autocast, AutocastNestedGuardsAndTheDefaultDtype) {
  const auto w = weight();
  autocast outer("cpu", torch::kHalf);
  EXPECT_EQ(mm_dtype(w), torch::kHalf);
  {
    autocast off("cpu", std::nullopt, false);
    EXPECT_EQ(mm_dtype(w), torch::kFloat);
    {
      autocast inner("cpu");
      EXPECT_EQ(mm_dtype(w), torch::kHalf) << "the default is the enclosing block's dtype";
    }
    EXPECT_EQ(mm_dtype(w), torch::kFloat);
  }
  EXPECT_EQ(mm_dtype(w), torch::kHalf);
}

TEST_F(Autocast, AutocastFastDtypeDefaultsToTorchs) {
  CaughtWarnings warnings;
  autocast cpu("cpu"), cuda("cuda");
  EXPECT_EQ(amp::get_autocast_dtype("cpu"), torch::kBFloat16);
  EXPECT_EQ(amp::get_autocast_dtype("cuda"), torch::kHalf);
}

TEST_F(Autocast, AnotherThreadIsOutside) {
  autocast guard("cpu");
  const auto w = weight();
  torch::ScalarType dtype{};
  std::thread([&] { dtype = mm_dtype(w); }).join();
  EXPECT_EQ(dtype, torch::kFloat);
}

// ---- the cache of weight casts

// upstream: test_cast_cache_is_global
TEST_F(Autocast, CastCacheIsGlobalAcrossForwardAndBackward) {
  struct Linear : torch::autograd::Function<Linear> {
    static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& w) {
      ctx->save_for_backward({x, w});
      return torch::linear(x, w);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                   torch::autograd::variable_list grads) {
      const autocast guard("cpu");
      const auto saved = ctx->get_saved_variables();
      return {grads[0].mm(saved[1]), grads[0].t().mm(saved[0])};
    }
  };
  const auto w = weight(), x = torch::randn({4, 4}).to(torch::kBFloat16).requires_grad_();
  CastCounter casts;
  autocast guard("cpu");
  const auto out = Linear::apply(x, w).sum();
  EXPECT_EQ(casts.take(), 1) << "the weight";
  out.backward();
  EXPECT_EQ(casts.take(), 1) << "the weight's gradient, to float32; the weight no more";
}

TEST_F(Autocast, TheOutermostEndDropsTheCache) {
  const auto w = weight(), x = torch::randn({4, 4}).to(torch::kBFloat16);
  CastCounter casts;
  for (int i = 0; i < 2; ++i) {
    autocast guard("cpu");
    torch::mm(w, x);
    EXPECT_EQ(casts.take(), 1) << "block " << i;
    {
      autocast inner("cpu");
      torch::mm(w, x);
    }
    torch::mm(w, x);
    EXPECT_EQ(casts.take(), 0) << "kept over the end of an inner block of the same dtype";
  }
}

TEST_F(Autocast, TheNextBlockUsesAChangedWeight) {
  auto w = weight();
  const auto eye = torch::eye(4);
  for (const float value : {1.0f, 2.0f}) {
    {
      const torch::NoGradGuard no_grad;
      w.fill_(value);
    }
    autocast guard("cpu");
    EXPECT_EQ(torch::mm(w, eye)[0][0].item<float>(), value);
  }
}

// upstream: test_cache_disabled
TEST_F(Autocast, CacheDisabledCastsEveryTime) {
  const auto w = weight(), x = torch::randn({4, 4}).to(torch::kBFloat16);
  CastCounter casts;
  autocast guard("cpu", torch::kBFloat16, true, /*cache_enabled=*/false);
  torch::mm(w, x);
  torch::mm(w, x);
  EXPECT_EQ(casts.take(), 2);
  autocast inner("cpu");
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled()) << "by default as around it";
}

// torch's own cache would return the outer block's dtype, since its key is only the weight.
TEST_F(Autocast, ADifferentDtypeInsideDoesNotGetTheOuterBlocksCasts) {
  const auto w = weight();
  autocast outer("cpu", torch::kBFloat16);
  EXPECT_EQ(mm_dtype(w), torch::kBFloat16);
  {
    autocast inner("cpu", torch::kHalf);
    EXPECT_EQ(mm_dtype(w), torch::kHalf);
  }
  EXPECT_EQ(mm_dtype(w), torch::kBFloat16);
}

TEST_F(Autocast, CachedCastsUnderNoGradStillGiveGradientsLater) {
  const auto w = weight();
  autocast guard("cpu");
  {
    const torch::NoGradGuard no_grad;
    torch::mm(w, w);
  }
  torch::mm(w, w).sum().backward();
  EXPECT_TRUE(w.grad().defined());
}

// ---- errors

// upstream: test_autocast_disabled_with_fp32_dtype and the warning of an unsupported one
TEST_F(Autocast, AnUnsupportedDtypeOnACpuWarnsAndCastsNothing) {
  const auto w = weight();
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kInt}) {
    CaughtWarnings warnings;
    autocast guard("cpu", dtype);
    EXPECT_FALSE(amp::is_autocast_enabled("cpu"));
    EXPECT_EQ(mm_dtype(w), torch::kFloat);
    EXPECT_TRUE(contains(warnings.text, std::string("amp::autocast(\"cpu\", ") + c10::toString(dtype) +
                                            ") casts nothing: on this device it supports BFloat16 and Half"));
  }
  CaughtWarnings warnings;
  autocast off("cpu", torch::kFloat, false);
  EXPECT_EQ(warnings.text, "") << "no casts were asked for";
}

TEST_F(Autocast, CudaWithoutAGpuWarnsAndCastsNothing) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "needs a machine without a CUDA device";
  CaughtWarnings warnings;
  autocast guard("cuda");
  EXPECT_FALSE(amp::is_autocast_enabled("cuda"));
  EXPECT_TRUE(contains(warnings.text, "there is no CUDA device"));
}

TEST_F(Autocast, WithoutADeviceItIsForCudaAsInTorchCudaAmp) {
  CaughtWarnings warnings;
  const autocast guard;
  EXPECT_EQ(amp::is_autocast_enabled("cuda"), torch::cuda::is_available());
  EXPECT_FALSE(amp::is_autocast_enabled("cpu"));
}

TEST_F(Autocast, CudaCastsMatmulToHalf) {
  APEX_CPP_NEEDS_GPUS(1);
  const auto w = torch::randn({4, 4}, torch::kCUDA);
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    autocast guard("cuda", dtype);
    EXPECT_EQ(mm_dtype(w), dtype);
    EXPECT_EQ(torch::softmax(w.to(dtype), 0).scalar_type(), torch::kFloat);
  }
}

// upstream: test_invalid_device
TEST_F(Autocast, InvalidDevicesAreErrors) {
  const Flags before;
  EXPECT_TRUE(contains(message_of([] { autocast guard("meta"); }), "torch has no autocast for the device type 'meta'"));
  EXPECT_THROW(autocast guard("not_a_device"), c10::Error);
  EXPECT_TRUE(contains(message_of([] { autocast guard("cuda:0"); }), "Leave the index out"));
  EXPECT_TRUE(Flags() == before);
}

static_assert(!std::is_copy_constructible_v<autocast> && !std::is_move_constructible_v<autocast>);
static_assert(std::is_nothrow_destructible_v<autocast>);

// ---- backward: only forward and loss belong in the block, and a backward inside does no harm

TEST_F(Autocast, BackwardOutsideOrInsideTheBlockGivesFloat32GradientsForFloat32Weights) {
  const auto w = weight(), x = torch::randn({4, 4});
  std::vector<Tensor> grads;
  for (const bool inside : {false, true}) {
    w.mutable_grad() = Tensor();
    {
      autocast guard("cpu");
      const auto loss = torch::mm(x, w).sum();
      if (inside) {
        loss.backward();
      } else {
        autocast off("cpu", std::nullopt, false);
        loss.backward();
      }
    }
    EXPECT_EQ(w.grad().scalar_type(), torch::kFloat);
    grads.push_back(w.grad().clone());
  }
  EXPECT_TRUE(torch::equal(grads[0], grads[1]));
}

}  // namespace
}  // namespace apex::test
