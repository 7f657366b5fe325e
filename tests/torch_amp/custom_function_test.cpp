// custom_fwd and custom_bwd: autograd functions under autocast. After PyTorch's test_autocast_custom_*.
#include <map>
#include <thread>

#include "tests/amp/support.h"
#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

using amp::autocast;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the last forward and backward ran with.
struct Seen {
  bool forward_on = false, backward_on = false;
  torch::ScalarType forward_dtype{}, backward_dtype{};
  torch::ScalarType a{}, list{}, ints{}, doubles{};
} seen;

/// a.mm(b) under the casts that are on.
struct MyMm : torch::autograd::Function<MyMm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
    return amp::custom_fwd(
        ctx, "cpu",
        [&](const Tensor& x, const Tensor& y) {
          seen.forward_on = amp::is_autocast_enabled("cpu");
          ctx->save_for_backward({x, y});
          return x.mm(y);
        },
        a, b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return amp::custom_bwd(ctx, "cpu", [&]() -> variable_list {
      seen.backward_on = amp::is_autocast_enabled("cpu");
      seen.backward_dtype = amp::get_autocast_dtype("cpu");
      const auto saved = ctx->get_saved_variables();
      return {grads[0].mm(saved[1].t()), saved[0].t().mm(grads[0])};
    });
  }
};

class CustomFunction : public AmpTest {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    seen = {};
  }
  Tensor a = torch::randn({4, 4}, torch::requires_grad()), b = torch::randn({4, 4}, torch::requires_grad());
};

// upstream: test_autocast_custom_enabled
TEST_F(CustomFunction, AutocastCustomEnabledRunsBackwardWithTheCastsOfForward) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    Tensor out;
    {
      autocast guard("cpu", dtype);
      out = MyMm::apply(a, b);
    }
    EXPECT_EQ(out.scalar_type(), dtype);
    EXPECT_TRUE(seen.forward_on);
    out.sum().backward();
    EXPECT_TRUE(seen.backward_on) << "though backward is called outside";
    EXPECT_EQ(seen.backward_dtype, dtype);
    EXPECT_EQ(a.grad().scalar_type(), torch::kFloat);
    EXPECT_FALSE(amp::is_autocast_enabled("cpu"));
  }
}

TEST_F(CustomFunction, OutsideABlockBackwardIsOffEvenWhenCalledInside) {
  const auto out = MyMm::apply(a, b);
  EXPECT_EQ(out.scalar_type(), torch::kFloat);
  autocast guard("cpu");
  out.sum().backward();
  EXPECT_FALSE(seen.backward_on);
  EXPECT_TRUE(amp::is_autocast_enabled("cpu")) << "restored";
}

TEST_F(CustomFunction, BackwardInAnotherThreadFollowsForward) {
  Tensor loss;
  {
    autocast guard("cpu", torch::kHalf);
    loss = MyMm::apply(a, b).sum();
  }
  std::thread([&] { loss.backward(); }).join();
  EXPECT_TRUE(seen.backward_on);
  EXPECT_EQ(seen.backward_dtype, torch::kHalf);
}

/// Computes in float32 again in its backward.
struct AgainInFloat32 : torch::autograd::Function<AgainInFloat32> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a) {
    return amp::custom_fwd(
        ctx, "cpu", torch::kFloat,
        [&](const Tensor& x) {
          ctx->save_for_backward({x});
          return x.mm(x);
        },
        a);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return amp::custom_bwd(ctx, "cpu", [&]() -> variable_list {
      const at::AutoGradMode with_grad(true);
      const Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
      const Tensor again = x.mm(x);
      seen.a = again.scalar_type();
      return torch::autograd::grad({again}, {x}, {grads[0]});
    });
  }
};

TEST_F(CustomFunction, AFloat32FunctionIsRecomputedInFloat32AtO1) {
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  AgainInFloat32::apply(a).sum().backward();
  EXPECT_EQ(seen.a, torch::kFloat);
}

/// Wants float32, of tensors in containers too.
struct InFloat32 : torch::autograd::Function<InFloat32> {
  using Map = std::map<std::string, std::vector<Tensor>>;

  static Tensor forward(AutogradContext* ctx, const Tensor& a, const std::vector<Tensor>& list, const Map& others, int factor) {
    return amp::custom_fwd(
        ctx, "cpu", torch::kFloat,
        [&](const Tensor& x, const std::vector<Tensor>& y, const Map& more, int k) {
          seen.forward_on = amp::is_autocast_enabled("cpu");
          seen.a = x.scalar_type();
          seen.list = y.at(0).scalar_type();
          seen.ints = more.at("ints").at(0).scalar_type();
          seen.doubles = more.at("doubles").at(0).scalar_type();
          ctx->save_for_backward({y[0]});
          return x.mm(y[0]) * k;
        },
        a, list, others, factor);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return amp::custom_bwd(ctx, "cpu", [&]() -> variable_list {
      seen.backward_on = amp::is_autocast_enabled("cpu");
      seen.backward_dtype = grads[0].scalar_type();
      return {grads[0].mm(ctx->get_saved_variables()[0].t()), Tensor(), Tensor(), Tensor()};
    });
  }
};

const InFloat32::Map& others() {
  static const InFloat32::Map map{{"ints", {torch::ones({2}, torch::kInt)}}, {"doubles", {torch::ones({2}, torch::kDouble)}}};
  return map;
}

// upstream: test_autocast_custom_cast_inputs
TEST_F(CustomFunction, AutocastCustomCastInputsCastsContainersAndRunsWithoutCasts) {
  const auto half = torch::randn({4, 4}).to(torch::kHalf).requires_grad_();
  Tensor out;
  {
    autocast guard("cpu");
    out = InFloat32::apply(half, std::vector<Tensor>{b.detach().to(torch::kBFloat16)}, others(), 2);
    EXPECT_TRUE(amp::is_autocast_enabled("cpu")) << "restored";
    out.sum().backward();
  }
  EXPECT_EQ(seen.a, torch::kFloat);
  EXPECT_EQ(seen.list, torch::kFloat);
  EXPECT_EQ(seen.ints, torch::kInt);
  EXPECT_EQ(seen.doubles, torch::kDouble) << "float64 is left alone";
  EXPECT_FALSE(seen.forward_on);
  EXPECT_EQ(out.scalar_type(), torch::kFloat);
  EXPECT_FALSE(seen.backward_on) << "though backward is called inside";
  EXPECT_EQ(seen.backward_dtype, torch::kFloat);
  EXPECT_EQ(half.grad().scalar_type(), torch::kHalf);
}

TEST_F(CustomFunction, CastInputsDoesNothingOutsideABlock) {
  const auto bf16 = torch::randn({4, 4}).to(torch::kBFloat16);
  InFloat32::apply(bf16, std::vector<Tensor>{bf16}, others(), 1);
  EXPECT_EQ(seen.a, torch::kBFloat16);
  EXPECT_EQ(seen.list, torch::kBFloat16);
}

TEST_F(CustomFunction, CastInputsDoesNotCastTensorsOnOtherDevices) {
  APEX_CPP_NEEDS_GPUS(1);
  const auto on_gpu = torch::ones({2}, torch::dtype(torch::kHalf).device(torch::kCUDA));
  EXPECT_EQ(amp::detail::cast_eligible(on_gpu, "cpu", torch::kFloat).scalar_type(), torch::kHalf);
  EXPECT_EQ(amp::detail::cast_eligible(on_gpu, "cuda", torch::kFloat).scalar_type(), torch::kFloat);
}

// ---- amp's own casts (O1, O4) ----

/// What a custom function computes and how the gradients of both arguments come out, under amp's casts of a level.
struct ProductUnderAmp : CustomFunction, ::testing::WithParamInterface<const char*> {
  c10::ScalarType low() const { return std::string(GetParam()) == "O4" ? torch::kBFloat16 : torch::kHalf; }
  void SetUp() override {
    CustomFunction::SetUp();
    net_ = amp::initialize(model_, GetParam(), quiet());
  }
  // The product of the 16-bit values, and gradients of its sum by the same rule.
  void expect_16_bit_product(const Tensor& out) {
    const amp::disable_casts off;
    const Tensor x = a.detach().to(low()), y = b.detach().to(low());
    EXPECT_EQ(out.dtype(), low());
    EXPECT_TRUE(torch::equal(out, x.mm(y)));
    const Tensor ones = torch::ones({4, 4}).to(low());
    EXPECT_TRUE(torch::equal(a.grad(), ones.mm(y.t()).to(torch::kFloat)));
    EXPECT_TRUE(torch::equal(b.grad(), x.t().mm(ones).to(torch::kFloat)));
  }

 private:
  Mlp model_;
  amp::Model<Mlp> net_{nullptr};
};

/// a.mm(b), for any device type.
template <bool kOnCuda>
struct AnyMm : torch::autograd::Function<AnyMm<kOnCuda>> {
  static constexpr const char* kDevice = kOnCuda ? "cuda" : "cpu";
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
    return amp::custom_fwd(
        ctx, kDevice,
        [&](const Tensor& x, const Tensor& y) {
          ctx->save_for_backward({x, y});
          return x.mm(y);
        },
        a, b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return amp::custom_bwd(ctx, kDevice, [&]() -> variable_list {
      const auto saved = ctx->get_saved_variables();
      seen.backward_dtype = torch::mm(saved[0], saved[1]).scalar_type();
      return {grads[0].mm(saved[1].t()), saved[0].t().mm(grads[0])};
    });
  }
};

TEST_P(ProductUnderAmp, BackwardRunsWithForwardsCastsForAnyDeviceType) {
  for (const bool on_cuda : {false, true}) {
    a.mutable_grad().reset(), b.mutable_grad().reset(), seen = {};
    const Tensor out = on_cuda ? AnyMm<true>::apply(a, b) : AnyMm<false>::apply(a, b);
    std::thread([&] { out.sum().backward(); }).join();
    EXPECT_EQ(seen.backward_dtype, low());
    expect_16_bit_product(out);
  }
}

// The newest casts of the program are then those of the other level.
TEST_P(ProductUnderAmp, BackwardRunsWithForwardsCastsAfterAnotherThreadHasInitialized) {
  Mlp model_of_other;
  amp::Model<Mlp> other{nullptr};
  std::thread([&] { other = amp::initialize(model_of_other, low() == torch::kHalf ? "O4" : "O1", quiet()); }).join();
  const Tensor out = AnyMm<false>::apply(a, b);
  out.sum().backward();
  EXPECT_EQ(seen.backward_dtype, low());
  expect_16_bit_product(out);
}

// As on a thread of autograd or of a thread pool.
TEST_P(ProductUnderAmp, BackwardRunsWithTheCastsThatForwardsThreadWasGiven) {
  Tensor out;
  const at::ThreadLocalState here;
  std::thread([&] {
    const at::ThreadLocalStateGuard as_here(here);
    out = AnyMm<false>::apply(a, b);
  }).join();
  out.sum().backward();
  EXPECT_EQ(seen.backward_dtype, low());
  expect_16_bit_product(out);
}

TEST_P(ProductUnderAmp, BackwardOfAForwardWithoutCastsIsNotCast) {
  Tensor out;
  {
    const amp::disable_casts off;
    out = AnyMm<false>::apply(a, b);
  }
  out.sum().backward();
  EXPECT_EQ(out.dtype(), torch::kFloat);
  EXPECT_EQ(seen.backward_dtype, torch::kFloat);
}

/// Without custom_fwd and custom_bwd: FP32 tensors that were saved meet the gradient of a 16-bit product.
struct PlainMm : torch::autograd::Function<PlainMm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
    ctx->save_for_backward({a, b});
    return a.mm(b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    seen.backward_dtype = torch::mm(saved[0], saved[1]).scalar_type();
    return {grads[0].mm(saved[1].t()), saved[0].t().mm(grads[0])};
  }
};

TEST_P(ProductUnderAmp, APlainFunctionTrains) {
  const Tensor out = PlainMm::apply(a, b);
  out.sum().backward();
  EXPECT_EQ(seen.backward_dtype, torch::kFloat) << "in a backward pass only a mix of types is cast";
  expect_16_bit_product(out);
}

/// Takes its inputs by `auto&`, as in the example of custom_fwd.
struct ByReference : torch::autograd::Function<ByReference> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
    const auto product = [&](auto& x, auto& y) {
      seen.a = x.scalar_type();
      return x.mm(y);
    };
    return amp::custom_fwd(ctx, "cpu", torch::kFloat, product, a, b);
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], grads[0]}; }
};

TEST_P(ProductUnderAmp, CastInputsMayBeTakenByReference) {
  EXPECT_EQ(ByReference::apply(a.detach().to(low()), b).scalar_type(), torch::kFloat);
  EXPECT_EQ(seen.a, torch::kFloat);
}

TEST_P(ProductUnderAmp, CastInputsRunsInThatDtypeWithoutCasts) {
  const auto x = torch::randn({4, 4}).to(low()).requires_grad_();
  const Tensor out = InFloat32::apply(x, std::vector<Tensor>{b.detach().to(low())}, others(), 2);
  EXPECT_EQ(seen.a, torch::kFloat);
  EXPECT_EQ(seen.list, torch::kFloat);
  EXPECT_EQ(seen.doubles, torch::kDouble) << "float64 is left alone";
  EXPECT_EQ(out.dtype(), torch::kFloat) << "a product is not cast inside";
  out.sum().backward();
  EXPECT_EQ(seen.backward_dtype, torch::kFloat);
  EXPECT_EQ(x.grad().dtype(), low());
}

INSTANTIATE_TEST_SUITE_P(Levels, ProductUnderAmp, ::testing::Values("O1", "O4"), [](const auto& test) { return test.param; });

TEST_F(CustomFunction, BackwardWithoutCustomFwdIsAnErrorThatSaysSo) {
  struct OnlyBackward : torch::autograd::Function<OnlyBackward> {
    static Tensor forward(AutogradContext*, const Tensor& x) { return x * 2; }
    static variable_list backward(AutogradContext* ctx, variable_list grads) {
      return amp::custom_bwd(ctx, "cpu", [&] { return grads; });
    }
  };
  const auto out = OnlyBackward::apply(a).sum();
  EXPECT_TRUE(
      contains(message_of([&] { out.backward(); }), "Wrap the forward function in amp::custom_fwd for the same device type"));
}

}  // namespace
}  // namespace apex::test
