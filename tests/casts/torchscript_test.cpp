// A TorchScript module inside a model: the interpreter calls operators as a program does. Optimized graphs would be
// differentiated with TorchScript's own formulas, which ignore casts.
#include <torch/script.h>

#include <sstream>
#include <thread>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

torch::jit::Module scripted() {
  torch::jit::Module module("scripted");
  const auto add = [&](const char* name, std::vector<int64_t> sizes) {
    module.register_parameter(name, torch::randn(sizes).mul_(0.3).requires_grad_(), /*is_buffer=*/false);
  };
  add("w1", {6, 6}), add("b1", {6}), add("w2", {6, 6}), add("conv", {1, 1, 3});
  module.define(R"(
    def forward(self, x):
        h = torch.tanh(torch.linear(x, self.w1, self.b1))
        h = torch.conv1d(h.unsqueeze(1), self.conv, None, [1], [1]).squeeze(1)
        for i in range(2):
            h = torch.relu(torch.matmul(h, self.w2)) * 2 + x
        return torch.softmax(torch.layer_norm(h, [6]), 1)
  )");
  return module;
}

torch::jit::Module saved_and_loaded(const torch::jit::Module& module) {
  std::stringstream file;
  module.save(file);
  return torch::jit::load(file);
}

struct WithScriptImpl : torch::nn::Module {
  explicit WithScriptImpl(torch::jit::Module module) : script(std::move(module)) {
    fc = register_module("fc", torch::nn::Linear(6, 6));
    out = register_module("out", torch::nn::Linear(6, 3));
  }
  Tensor forward(Tensor x) { return out(script.forward({fc(x)}).toTensor()); }
  std::vector<Tensor> all_parameters() const {
    auto all = parameters();
    for (const Tensor& p : script.parameters()) all.push_back(p);
    return all;
  }
  torch::jit::Module script;
  torch::nn::Linear fc{nullptr}, out{nullptr};
};
TORCH_MODULE(WithScript);

struct Script : AmpTest, ::testing::WithParamInterface<const char*> {
  // Losses of eight steps; the executor specializes the graph during the first ones.
  static std::vector<float> losses(const char* level, bool loaded, bool runs_before = false) {
    torch::manual_seed(3);
    WithScript model(loaded ? saved_and_loaded(scripted()) : scripted());
    for (int i = 0; runs_before && i < 3; ++i) {
      const torch::NoGradGuard no_grad;
      model->forward(features());
    }
    torch::optim::SGD optimizer(model->all_parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
    std::vector<float> result;
    for (int i = 0; i < 8; ++i) {
      opt.zero_grad();
      const Tensor loss = torch::mse_loss(net->forward(features()), torch::ones({4, 3}));
      {
        auto scaled = amp::scale_loss(loss, opt);
        scaled.backward();
      }
      opt.step();
      result.push_back(loss.item<float>());
    }
    amp::reset();
    return result;
  }
};

// Some ten roundings to BF16 of values near 1, 2^-9 each on average, come before the softmax: its outputs are true to 2 %. The
// last layer, with weights up to 0.41, makes 0.008 of that, and rounds to BF16. The loss is a mean of squares of values near 1,
// which are off by 0.01 now: true to 0.02.
TEST_P(Script, TrainsInsideAModelNearFloat32) {
  for (const bool loaded : {false, true}) {
    static const std::vector<float> at_o0[] = {losses("O0", false), losses("O0", true)};
    const auto got = losses(GetParam(), loaded), &want = at_o0[loaded];
    EXPECT_LT(want.back(), want.front());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.02) << i << (loaded ? ", loaded" : "");
  }
}

TEST_P(Script, AnEarlierRunWithoutGradientsChangesNothing) {
  EXPECT_EQ(losses(GetParam(), false, true), losses(GetParam(), false));
}

TEST_P(Script, ResetTurnsGraphOptimizationOnAgain) {
  Mlp model;
  {
    auto net = amp::initialize(model, GetParam(), quiet());
    EXPECT_FALSE(torch::jit::getGraphExecutorOptimize());
    net->forward(features());
    EXPECT_FALSE(torch::jit::getGraphExecutorOptimize());
    std::thread([&, amped = net]() mutable {
      const amp::disable_casts off;
      EXPECT_TRUE(torch::jit::getGraphExecutorOptimize());
      { const amp::enable_casts on; }
      EXPECT_TRUE(torch::jit::getGraphExecutorOptimize());
    }).join();
  }
  amp::reset();
  EXPECT_TRUE(torch::jit::getGraphExecutorOptimize());
}

INSTANTIATE_TEST_SUITE_P(Levels, Script, ::testing::Values("O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace apex::test
