// Level O6: which products run in FP8, and that training is O5's otherwise.
#include <apex_cpp/activation_checkpoint.h>
#include <apex_cpp/amp/float8/product.h>
#include <apex_cpp/amp/trace.h>
#include <apex_cpp/optimizers.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/amp/support.h"
#include "tests/errors.h"

namespace apex::test {
namespace {

using amp::detail::Float8Format;
using amp::detail::Float8Recipe;
using amp::detail::Float8Role;
using amp::detail::Float8Rounding;
using torch::Tensor;

constexpr int64_t kWidth = 32;

struct StackImpl : torch::nn::Module {
  StackImpl() {
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    middle = register_module("middle", torch::nn::Linear(kWidth, 2 * kWidth));
    narrow = register_module("narrow", torch::nn::Linear(2 * kWidth, 24));
    last = register_module("last", torch::nn::Linear(24, kWidth));
  }
  Tensor forward(const Tensor& x) { return last(narrow(middle(first(x)).relu()).relu()); }
  torch::nn::Linear first{nullptr}, middle{nullptr}, narrow{nullptr}, last{nullptr};
};
TORCH_MODULE(Stack);

Tensor inputs() { return torch::randn({16, kWidth}); }

Tensor plain(const torch::nn::Linear& layer, const Tensor& x) {
  const amp::disable_casts casts_off;
  return torch::linear(x, layer->weight, layer->bias);
}

Tensor in_float8(const torch::nn::Linear& layer, const Tensor& x, Float8Rounding rounding) {
  const amp::disable_casts casts_off;
  return amp::detail::float8_linear({x}, {layer->weight, Float8Role::weight}, layer->bias, rounding);
}

const Float8Rounding kCurrent = {Float8Recipe::current, Float8Format::e5m2};

/// What the stack computes with the layers of `float8` in FP8 and the others in bfloat16.
Tensor expected(const Stack& net, Tensor x, const std::vector<const torch::nn::LinearImpl*>& float8,
                Float8Rounding rounding = kCurrent) {
  const auto run = [&](const torch::nn::Linear& layer) {
    const bool rounds = std::find(float8.begin(), float8.end(), layer.get()) != float8.end();
    x = rounds ? in_float8(layer, x, rounding) : plain(layer, x);
  };
  x = x.to(torch::kBFloat16);
  run(net->first), run(net->middle), x = x.relu(), run(net->narrow), x = x.relu(), run(net->last);
  return x;
}

class LevelO6 : public AmpTest {
 protected:
  Stack stack;
  const Tensor x = inputs();

  // The output of the handle's forward.
  Tensor output(const amp::OptLevel& level, amp::InitializeOptions options = quiet()) {
    auto net = amp::initialize(stack, level, options.cast_model_outputs(torch::kBFloat16));
    return net->forward(x);
  }
};

amp::InitializeOptions modules_in_bfloat16(const std::vector<std::string>& paths) { return quiet().bfloat16_modules(paths); }

// `narrow` has 24 outputs, which is no multiple of 16; the first and the last layer stay in bfloat16.
TEST_F(LevelO6, RoundsProductsOfTheInnerLayers) {
  const Tensor y = output("O6");
  EXPECT_TRUE(torch::equal(y, expected(stack, x, {stack->middle.get()})));
  EXPECT_FALSE(torch::equal(y, expected(stack, x, {})));
}

TEST_F(LevelO6, RoundsEveryLayerWhoseSizesAllowIt) {
  const Tensor y = output("O6", modules_in_bfloat16({}));
  EXPECT_TRUE(torch::equal(y, expected(stack, x, {stack->first.get(), stack->middle.get()})));
}

TEST_F(LevelO6, LeavesNamedModulesInBfloat16) {
  const Tensor y = output("O6", modules_in_bfloat16({"middle"}));
  EXPECT_TRUE(torch::equal(y, expected(stack, x, {stack->first.get()})));
}

TEST_F(LevelO6, RefusesAModuleThatIsNotThere) {
  expect_error([&] { output("O6", modules_in_bfloat16({"muddle"})); }, {"'muddle'", "bfloat16_modules"});
}

TEST_F(LevelO6, TakesTheRecipe) {
  const Tensor y = output("O6", quiet().fp8("mx"));
  EXPECT_TRUE(torch::equal(y, expected(stack, x, {stack->middle.get()}, {Float8Recipe::mx, Float8Format::e4m3})));
}

TEST_F(LevelO6, IsO5WithoutARecipe) {
  const Tensor y = output("O6", quiet().fp8("none"));
  EXPECT_TRUE(torch::equal(y, expected(stack, x, {})));
}

TEST_F(LevelO6, IsO5WithARecipe) {
  const Tensor y = output("O5", quiet().fp8("current"));
  EXPECT_TRUE(torch::equal(y, expected(stack, x, {stack->middle.get()})));
}

TEST_F(LevelO6, KeepsFloat32Modules) {
  const Tensor y = output("O6", quiet().float32_modules({"middle"}));
  EXPECT_EQ(stack->middle->weight.scalar_type(), torch::kFloat);
  const Tensor between = plain(stack->first, x.to(torch::kBFloat16)).to(torch::kFloat);
  const Tensor after = plain(stack->middle, between).relu().to(torch::kBFloat16);
  EXPECT_TRUE(torch::equal(y, plain(stack->last, plain(stack->narrow, after).relu())));
}

TEST_F(LevelO6, AppliesToTheOriginalsForwardToo) {
  amp::InitializeOptions options = quiet();
  auto net = amp::initialize(stack, "O6", options);
  const Tensor y = stack->middle->forward(x.to(torch::kBFloat16));
  EXPECT_TRUE(torch::equal(y, in_float8(stack->middle, x.to(torch::kBFloat16), kCurrent)));
}

TEST_F(LevelO6, StopsInsideDisableCasts) {
  auto net = amp::initialize(stack, "O6", quiet());
  const Tensor features = x.to(torch::kBFloat16);
  EXPECT_FALSE(torch::equal(stack->middle->forward(features), plain(stack->middle, features)));
  const amp::disable_casts casts_off;
  EXPECT_TRUE(torch::equal(stack->middle->forward(features), plain(stack->middle, features)));
}

/// The operators, each called with the same factors at O6 and in bfloat16.
struct Call {
  const char* name;
  bool is_rounded;
  Tensor (*run)(const Tensor& a, const Tensor& b);
};

const Call kCalls[] = {
    {"mm", true, [](const Tensor& a, const Tensor& b) { return torch::mm(a, b); }},
    {"matmul", true,
     [](const Tensor& a, const Tensor& b) {
       return torch::matmul(a.view({2, 8, kWidth}), b);
     }},
    {"bmm", true, [](const Tensor& a, const Tensor& b) { return torch::bmm(a.unsqueeze(0), b.unsqueeze(0)); }},
    {"addmm", true, [](const Tensor& a, const Tensor& b) { return torch::addmm(a, a, b); }},
    {"baddbmm", true, [](const Tensor& a, const Tensor& b) { return torch::baddbmm(a, a.unsqueeze(0), b.unsqueeze(0)); }},
    {"linear", true, [](const Tensor& a, const Tensor& b) { return torch::linear(a, b); }},
    {"linear with a bias", true, [](const Tensor& a, const Tensor& b) { return torch::linear(a, b, b[0]); }},
    {"linear of a vector", true, [](const Tensor& a, const Tensor& b) { return torch::linear(a[0], b); }},
    {"linear of odd sizes", false, [](const Tensor& a, const Tensor& b) { return torch::linear(a, b.slice(0, 0, 24)); }},
    {"a vector", false, [](const Tensor& a, const Tensor& b) { return torch::matmul(a[0], b); }},
    {"cov", true, [](const Tensor& a, const Tensor&) { return at::cov(a); }},
    {"addmm_", false, [](const Tensor& a, const Tensor& b) { return a.clone().addmm_(a, b); }},
    {"einsum", false,
     [](const Tensor& a, const Tensor& b) {
       return torch::einsum("ij,jk->ik", {a, b});
     }},
    {"attention", false,
     [](const Tensor& a, const Tensor& b) {
       const Tensor heads = a.view({1, 1, 16, kWidth}), keys = b.view({1, 1, kWidth, kWidth});
       return at::scaled_dot_product_attention(heads, keys, keys);
     }},
    {"odd sizes", false, [](const Tensor& a, const Tensor& b) { return torch::mm(a, b.slice(1, 0, 24)); }},
    {"in float32", false, [](const Tensor& a, const Tensor& b) { return torch::mm(a.to(torch::kFloat), b.to(torch::kFloat)); }},
};

TEST_F(LevelO6, RoundsTheProductsThatThePageNames) {
  auto net = amp::initialize(stack, "O6", quiet());
  const Tensor a = torch::randn({16, kWidth}).to(torch::kBFloat16), b = torch::randn({kWidth, kWidth}).to(torch::kBFloat16);
  for (const Call& call : kCalls) {
    const Tensor here = call.run(a, b);
    const amp::disable_casts casts_off;
    EXPECT_EQ(torch::equal(here, call.run(a, b)), !call.is_rounded) << call.name;
  }
}

// What LibTorch refuses or computes without a product stays LibTorch's.
TEST_F(LevelO6, LeavesOtherShapesToLibTorch) {
  auto net = amp::initialize(stack, "O6", quiet());
  const auto of = [](at::IntArrayRef sizes) { return torch::ones(sizes, torch::kBFloat16); };
  expect_error([&] { torch::mm(of({2, 16, 32}), of({32, 32})); }, {"must be a matrix"});
  expect_error([&] { torch::bmm(of({1, 16, 32}), of({3, 32, 32})); }, {"batch"});
  expect_error([&] { torch::addmm(of({32}), of({1, 16, 32}), of({1, 32, 32})); }, {});
  expect_error([&] { torch::baddbmm(of({32}), of({16, 32}), of({32, 32})); }, {});
  EXPECT_TRUE(torch::equal(torch::linear(of({2, 3, 0}), of({16, 0})), torch::zeros({2, 3, 16}, torch::kBFloat16)));
  EXPECT_EQ(torch::mm(of({32, 32}).to(torch::kMeta), of({32, 32}).to(torch::kMeta)).sizes(), at::IntArrayRef({32, 32}));
}

// A leaf that requires grad, such as what a recomputation detaches, is no weight: in blocks of 128x128 it would be rounded
// otherwise.
TEST_F(LevelO6, TakesOnlyParametersForWeights) {
  auto net = amp::initialize(stack, "O6", quiet().fp8("block128").bfloat16_modules(std::vector<std::string>{}));
  const Tensor rows = (torch::randn({128, 32}) * torch::arange(1, 129).unsqueeze(1).pow(2)).to(torch::kBFloat16);
  const Tensor leaf = rows.clone().requires_grad_();
  EXPECT_TRUE(torch::equal(stack->middle->forward(rows), stack->middle->forward(leaf)));
}

TEST_F(LevelO6, HoldsNoActivationOfAFrozenLayer) {
  auto net = amp::initialize(stack, "O6", quiet());
  for (auto& param : stack->middle->parameters()) param.requires_grad_(false);
  const Tensor h = torch::randn({16, kWidth}).to(torch::kBFloat16).requires_grad_();
  const Tensor copy = h * 1;
  const Tensor y = stack->middle->forward(copy);
  copy.detach().zero_();
  EXPECT_NO_THROW(y.sum().backward());
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embedding = register_module("embedding", torch::nn::Linear(kWidth, kWidth));
    head = register_module("head", torch::nn::Linear(kWidth, kWidth));
    head->weight = head->register_parameter("tied", embedding->weight);
  }
  Tensor forward(const Tensor& x) { return torch::linear(x, head->weight); }
  torch::nn::Linear embedding{nullptr}, head{nullptr};
};
TORCH_MODULE(Tied);

TEST_F(LevelO6, KnowsATiedWeightByEitherName) {
  {
    Tied rounded;
    auto net = amp::initialize(rounded, "O6", modules_in_bfloat16({}));
    const Tensor features = x.to(torch::kBFloat16), y = rounded->forward(features);
    const amp::disable_casts casts_off;
    EXPECT_FALSE(torch::equal(y, torch::linear(features, rounded->head->weight))) << "not listed";
  }
  for (const char* name : {"embedding", "head"}) {
    Tied model;
    auto net = amp::initialize(model, "O6", modules_in_bfloat16({name}));
    const Tensor features = x.to(torch::kBFloat16), y = model->forward(features);
    const amp::disable_casts casts_off;
    EXPECT_TRUE(torch::equal(y, torch::linear(features, model->head->weight))) << name;
  }
}

TEST_F(LevelO6, DoesNotTakeAParameterOfTheModelItselfForALayer) {
  stack->register_parameter("position", torch::randn({4, 4}));
  const Tensor y = output("O6");
  EXPECT_TRUE(torch::equal(y, expected(stack, x, {stack->middle.get()})));
}

/// Bytes of weights and masters after some steps.
std::string trained(const amp::OptLevel& level, bool recomputes) {
  amp::reset();
  torch::manual_seed(7);
  Stack stack;
  optimizers::FusedAdam adam(stack->parameters(), optimizers::FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(stack, adam, level, quiet().skip_nonfinite(true));
  const Tensor x = inputs();
  for (int step = 0; step < 4; ++step) {
    opt.zero_grad();
    const Tensor y = recomputes ? checkpoint(net, x) : net->forward(x);
    { amp::scale_loss((y.to(torch::kFloat) - x).square().mean(), opt).backward(); }
    opt.step();
  }
  std::string bytes;
  for (const Tensor& param : net->parameters()) bytes += bytes_of(param);
  for (const Tensor& master : amp::master_params(opt)) bytes += bytes_of(master);
  return bytes;
}

TEST_F(LevelO6, TrainsToTheSameBitsTwice) { EXPECT_EQ(trained("O6", false), trained("O6", false)); }
TEST_F(LevelO6, TrainsToOtherBitsThanO5) { EXPECT_NE(trained("O6", false), trained("O5", false)); }
TEST_F(LevelO6, RecomputesToTheBitsOfAPlainPass) { EXPECT_EQ(trained("O6", true), trained("O6", false)); }

TEST_F(LevelO6, SkipsAStepWhoseGradientsOverflow) {
  amp::reset();
  optimizers::FusedAdam adam(stack->parameters(), optimizers::FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(stack, adam, "O6", quiet().skip_nonfinite(true));
  const std::string before = bytes_of(*stack);
  { amp::scale_loss(net->forward(x).sum() * kInf, opt).backward(); }
  opt.step();
  EXPECT_TRUE(amp::step_result(opt).skipped);
  EXPECT_EQ(bytes_of(*stack), before);
}

std::string printed(const std::function<void()>& call) {
  std::ostringstream out;
  auto* const before = std::cout.rdbuf(out.rdbuf());
  call();
  std::cout.rdbuf(before);
  return out.str();
}

TEST_F(LevelO6, PrintsItsRecipeBelowApexsBlock) {
  const std::string text = printed([&] { (void)amp::initialize(stack, "O6"); });
  for (const char* line : {"  fp8                    : current\n", "  fp8_gradients          : e5m2\n",
                           "  bfloat16_modules       : first, last\n"}) {
    EXPECT_TRUE(contains(text, line));
  }
  EXPECT_FALSE(contains(printed([&] { (void)amp::initialize(stack, "O5"); }), "fp8"));
}

// The weights of a norm have one dimension.
TEST_F(LevelO6, TakesNoNormForTheFirstOrTheLastLayer) {
  const auto is_printed = [](auto& model, const std::string& modules) {
    return contains(printed([&] { (void)amp::initialize(model, "O6"); }), "  bfloat16_modules       : " + modules + "\n");
  };
  stack->register_module("norm", torch::nn::BatchNorm1d(kWidth));
  EXPECT_TRUE(is_printed(stack, "first, last"));
  torch::nn::Linear of_one_layer(kWidth, kWidth);
  EXPECT_TRUE(is_printed(of_one_layer, "weight"));
  torch::nn::BatchNorm1d of_no_layer(kWidth);
  EXPECT_TRUE(is_printed(of_no_layer, "none"));
}

TEST_F(LevelO6, ShowsItsCastsInATrace) {
  auto net = amp::initialize(stack, "O6", quiet());
  const amp::trace trace;
  net->forward(x);
  std::vector<std::string> rounded;
  for (const auto& op : trace.ops()) {
    for (const auto& cast : op.casts) {
      if (cast.to == at::kFloat8_e4m3fn) rounded.push_back(op.name + " of " + op.module);
    }
  }
  EXPECT_EQ(rounded, std::vector<std::string>{"aten::addmm of middle"});
}

}  // namespace
}  // namespace apex::test
