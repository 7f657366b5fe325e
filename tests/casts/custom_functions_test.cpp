// Custom autograd functions that receive 16-bit tensors at O1 and O4; cast lists do not see their code.
#include <apex_cpp/normalization.h>

#include <functional>

#include "tests/amp/support.h"
#include "tests/amp/warnings.h"

namespace scene {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Rasterize : torch::autograd::Function<Rasterize> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.to(torch::kFloat) * 2; }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0] * 2}; }
};

struct Shade : torch::autograd::Function<Shade> {
  static Tensor forward(AutogradContext*, const Tensor& x, const Tensor& y) {
    return x.to(torch::kFloat) + y.to(torch::kFloat);
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], grads[0]}; }
};

// Declares its dtype with `custom_fwd`.
struct Aware : torch::autograd::Function<Aware> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    return apex::amp::custom_fwd(
        context, "cpu", torch::kFloat, [](const Tensor& each) { return each * 2; }, x);
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0] * 2}; }
};

}  // namespace scene

namespace apex::test {
namespace {

using torch::Tensor;
using Tail = std::function<Tensor(const Tensor&)>;

// The warnings when blocks begin whose losses are `tails` of the model's output, which is 16-bit at O1 and O4. Each loss has
// its own scaler, and each block runs twice.
std::string warnings_of(const char* level, const std::vector<Tail>& tails) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] =
      amp::initialize(model, optimizer, level, quiet().loss_scale(8.0).num_losses(static_cast<int64_t>(tails.size())));
  std::string text;
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < tails.size(); ++i) {
      const Tensor loss = tails[i](net->forward(features())).to(torch::kFloat).square().mean();
      const CaughtWarnings caught;
      auto scaled = amp::scale_loss(loss, opt, static_cast<int64_t>(i));
      scaled.backward();
      text += caught.text;
    }
  }
  amp::reset();
  return text;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

const Tail rasterize = [](const Tensor& x) { return scene::Rasterize::apply(x); };
const Tail shade = [](const Tensor& x) { return scene::Shade::apply(x.to(torch::kFloat), x); };

struct CustomFunctions : AmpTest, ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Levels, CustomFunctions, ::testing::Values("O1", "O4"), [](const auto& test) { return test.param; });

TEST_P(CustomFunctions, Receiving16BitTensorsCausesOneWarning) {
  const char* type = std::string(GetParam()) == "O1" ? "Half" : "BFloat16";
  const std::string text = warnings_of(
      GetParam(), {[](const Tensor& x) { return rasterize(rasterize(x.tanh()).to(x.scalar_type())); }, shade, rasterize});
  EXPECT_EQ(count_of(text, std::string("scene::Rasterize was given a ") + type), 1u) << text;
  EXPECT_EQ(count_of(text, std::string("scene::Shade was given a ") + type), 1u) << "any of its inputs, in any block" << text;
  EXPECT_EQ(count_of(text, "was given"), 2u) << text;
  EXPECT_TRUE(contains(text, "amp::float_function"));
}

TEST_P(CustomFunctions, ReceivingFloat32OrDeclaringADtypeCausesNoWarning) {
  const std::vector<Tail> tails = {
      [](const Tensor& x) { return amp::float_function(rasterize)(x); },
      [](const Tensor& x) { return rasterize(x.to(torch::kFloat)); },
      [](const Tensor& x) { return scene::Aware::apply(x); },
      [](const Tensor& x) { return normalization::MixedFusedLayerNorm(3)(x); },
  };
  EXPECT_EQ(warnings_of(GetParam(), tails), "");
}

TEST(CustomFunctionsElsewhere, CauseNoWarningAtOtherLevels) {
  for (const char* level : {"O0", "O2", "O5"}) EXPECT_EQ(warnings_of(level, {rasterize}), "") << level;
}

}  // namespace
}  // namespace apex::test
