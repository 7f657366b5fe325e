// Convolutions in FP8, with `fp8_convolutions`: those of LibTorch with rounded operands, and a rounded gradient of the result.
#include <apex_cpp/amp/float8/product.h>
#include <apex_cpp/amp/trace.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "kernels/float8/float8.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using kernels::Float8;
using torch::Tensor;

constexpr int64_t kChannels = 16;

struct ImagesImpl : torch::nn::Module {
  ImagesImpl() {
    const auto options = torch::nn::Conv2dOptions(kChannels, kChannels, 3).padding(1);
    first = register_module("first", torch::nn::Conv2d(options));
    middle = register_module("middle", torch::nn::Conv2d(options));
    last = register_module("last", torch::nn::Conv2d(options));
  }
  Tensor forward(const Tensor& x) { return last(middle(first(x)).relu_()); }
  torch::nn::Conv2d first{nullptr}, middle{nullptr}, last{nullptr};
};
TORCH_MODULE(Images);

Tensor rounded(const Tensor& x, Float8 format = Float8::e4m3) {
  return kernels::round_to_float8(x.detach(), format, {}).values;
}

class Float8Convolutions : public AmpTest {
 protected:
  static amp::InitializeOptions with_convolutions() { return quiet().fp8_convolutions(true); }
  Images model;
  const Tensor x = torch::randn({2, kChannels, 8, 8}).to(torch::kBFloat16);
};

TEST_F(Float8Convolutions, RoundOperandsAndTheGradientOfTheResult) {
  auto net = amp::initialize(model, "O6", with_convolutions());
  const Tensor input = x.clone().requires_grad_(), grad = torch::randn_like(x);
  auto& layer = model->middle;
  const Tensor y = layer->forward(input);
  y.backward(grad);

  const amp::disable_casts casts_off;
  const Tensor other = rounded(x).requires_grad_(), weight = rounded(layer->weight).requires_grad_();
  const Tensor bias = layer->bias.detach().clone().requires_grad_();
  const Tensor expected = torch::conv2d(other, weight, bias, 1, 1);
  expected.backward(rounded(grad, Float8::e5m2));
  EXPECT_TRUE(torch::equal(y, expected));
  EXPECT_TRUE(torch::equal(input.grad(), other.grad()));
  EXPECT_TRUE(torch::equal(layer->weight.grad(), weight.grad()));
  EXPECT_TRUE(torch::equal(layer->bias.grad(), bias.grad()));
  EXPECT_FALSE(torch::equal(y, torch::conv2d(x, layer->weight, layer->bias, 1, 1)));
}

TEST_F(Float8Convolutions, StayInBfloat16Unasked) {
  auto net = amp::initialize(model, "O6", quiet());
  const Tensor y = model->middle->forward(x);
  const amp::disable_casts casts_off;
  EXPECT_TRUE(torch::equal(y, model->middle->forward(x)));
}

TEST_F(Float8Convolutions, LeaveNamedModulesAndOddChannelsInBfloat16) {
  auto net = amp::initialize(model, "O6", with_convolutions().bfloat16_modules({"middle"}));
  const auto is_rounded = [](const std::function<Tensor()>& call) {
    const Tensor here = call();
    const amp::disable_casts casts_off;
    return !torch::equal(here, call());
  };
  EXPECT_TRUE(is_rounded([&] { return model->first->forward(x); }));
  EXPECT_FALSE(is_rounded([&] { return model->middle->forward(x); }));
  EXPECT_FALSE(is_rounded([&] { return torch::conv2d(x, torch::ones({24, kChannels, 1, 1}, torch::kBFloat16)); }));
  const std::array<int64_t, 2> ones{1, 1}, zeros{0, 0};
  const Tensor of_two_groups = torch::ones({kChannels, 8, 1, 1}, torch::kBFloat16);
  EXPECT_FALSE(is_rounded([&] { return at::conv2d(x, of_two_groups, {}, ones, zeros, ones, 2); }));
}

/// Every operator, on random operands of its number of dimensions.
struct ConvolutionCall {
  const char* name;
  int64_t dims;
  Tensor (*run)(const Tensor& x, const Tensor& w);
};

const ConvolutionCall kConvolutions[] = {
    {"conv1d", 1, [](const Tensor& x, const Tensor& w) { return torch::conv1d(x, w); }},
    {"conv1d, same", 1, [](const Tensor& x, const Tensor& w) { return at::conv1d(x, w, {}, 1, "same"); }},
    {"conv2d", 2, [](const Tensor& x, const Tensor& w) { return torch::conv2d(x, w); }},
    {"conv2d, same", 2, [](const Tensor& x, const Tensor& w) { return at::conv2d(x, w, {}, 1, "same"); }},
    {"conv3d", 3, [](const Tensor& x, const Tensor& w) { return torch::conv3d(x, w); }},
    {"conv3d, same", 3, [](const Tensor& x, const Tensor& w) { return at::conv3d(x, w, {}, 1, "same"); }},
    {"conv_transpose1d", 1, [](const Tensor& x, const Tensor& w) { return torch::conv_transpose1d(x, w); }},
    {"conv_transpose2d", 2, [](const Tensor& x, const Tensor& w) { return torch::conv_transpose2d(x, w); }},
    {"conv_transpose3d", 3, [](const Tensor& x, const Tensor& w) { return torch::conv_transpose3d(x, w); }},
    {"convolution", 2,
     [](const Tensor& x, const Tensor& w) {
       return at::convolution(x, w, {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1);
     }},
};

TEST_F(Float8Convolutions, AreAllThatLibTorchHas) {
  auto net = amp::initialize(model, "O6", with_convolutions().fp8("mx"));
  for (const ConvolutionCall& call : kConvolutions) {
    std::vector<int64_t> of_input = {2, kChannels}, of_weight = {kChannels, kChannels};
    for (int64_t i = 0; i < call.dims; ++i) of_input.push_back(5), of_weight.push_back(3);
    const Tensor input = torch::randn(of_input).to(torch::kBFloat16), weight = torch::randn(of_weight).to(torch::kBFloat16);
    const Tensor y = call.run(input, weight);
    const amp::disable_casts casts_off;
    EXPECT_TRUE(torch::equal(y, call.run(rounded(input), rounded(weight)))) << call.name;
  }
}

// A program may change the result in place: the gradient of the convolution is rounded, not that of the sum.
TEST_F(Float8Convolutions, RoundTheGradientBelowAnInPlaceOperator) {
  auto net = amp::initialize(model, "O6", with_convolutions());
  const Tensor grad = torch::randn_like(x);
  const Tensor y = model->middle->forward(x);
  y.mul_(3);
  y.backward(grad);
  EXPECT_TRUE(torch::equal(model->middle->bias.grad(), rounded(grad * 3, Float8::e5m2).sum(c10::IntArrayRef({0, 2, 3}))));
}

// LibTorch gives the result of a single image as a view.
TEST_F(Float8Convolutions, RoundTheGradientOfASingleImage) {
  auto net = amp::initialize(model, "O6", with_convolutions());
  const Tensor grad = torch::randn_like(x[0]);
  const Tensor y = model->middle->forward(x[0]);
  y.mul_(3);
  y.backward(grad);
  EXPECT_TRUE(torch::equal(model->middle->bias.grad(), rounded(grad * 3, Float8::e5m2).sum(c10::IntArrayRef({1, 2}))));
}

TEST_F(Float8Convolutions, LeaveOtherShapesToLibTorch) {
  auto net = amp::initialize(model, "O6", with_convolutions().fp8("delayed"));
  expect_error([&] { model->middle->forward(torch::ones({kChannels}, torch::kBFloat16)); }, {"Expected 3D (unbatched) or 4D"});
}

TEST_F(Float8Convolutions, HaveADelayedScale) {
  auto net = amp::initialize(model, "O6", with_convolutions().fp8("delayed"));
  const auto block = [&](const Tensor& input) {
    auto scaled = amp::scale_loss(model->middle->forward(input).to(torch::kFloat).sum(), {});
    scaled.backward();
  };
  block(x);
  const Tensor history = amp::state_dict().float8_history;
  ASSERT_EQ(history.sizes(), at::IntArrayRef({1, 3, 3}));
  const Tensor expected = torch::stack({x.abs().max(), model->middle->weight.abs().max(), torch::ones({}, torch::kBFloat16)});
  EXPECT_TRUE(torch::equal(history[0][1], expected.to(torch::kFloat)));
  const Tensor larger = x * 16, y = model->middle->forward(larger);
  const amp::disable_casts casts_off;
  const Tensor scale = kernels::float8_scales(x.abs().max().to(torch::kFloat).view(1), Float8::e4m3);
  const Tensor input = kernels::round_to_float8_with(larger, Float8::e4m3, scale).rounded.values;
  EXPECT_TRUE(torch::equal(y, torch::conv2d(input, rounded(model->middle->weight), model->middle->bias, 1, 1)));
}

TEST_F(Float8Convolutions, ShowTheirCastsInATrace) {
  auto net = amp::initialize(model, "O6", with_convolutions());
  const amp::trace trace;
  net->forward(x);
  std::vector<std::string> found;
  for (const auto& op : trace.ops()) {
    for (const auto& cast : op.casts) {
      if (cast.to == at::kFloat8_e4m3fn) found.push_back(op.module);
    }
  }
  EXPECT_EQ(found, std::vector<std::string>{"middle"});
}

}  // namespace
}  // namespace apex::test
