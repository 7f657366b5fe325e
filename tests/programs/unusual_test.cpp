// Rare uses of gradients and of the graph.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class UnusualPrograms : public AmpTest {};

struct Saddle {
  Tensor x = torch::randn({32, 2});
  Tensor y = x.prod(1, true);
  template <class Net>
  Tensor loss(Net& net) const {
    return torch::mse_loss(net->forward(x), y);
  }
};

/// An image that is changed until a frozen network likes it; the model's forward has no arguments.
struct DreamImpl : torch::nn::Module {
  DreamImpl() { image = register_parameter("image", torch::randn({8, 4})); }
  Tensor forward() { return torch::tanh(image); }
  Tensor image;
};
TORCH_MODULE(Dream);

TEST_F(UnusualPrograms, InputOptimizedThroughAFrozenNetwork) {
  expect_trains_as_without_amp([](auto& amp) {
    Layers judge(4, 16, 1);
    for (auto& p : judge->parameters()) p.set_requires_grad(false);
    Dream model;
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1.0).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    const auto liked = judge->forward(torch::tanh(torch::randn({8, 4}))).to(torch::kFloat);
    train(amp, opt, 60, [&] { return torch::mse_loss(judge->forward(network->forward()).to(torch::kFloat), liked); });
  });
}

/// A physics-informed loss: the derivative of the output with respect to the input.
TEST_F(UnusualPrograms, DerivativeInTheLoss) {
  expect_trains_as_without_amp([](auto& amp) {
    Layers model(1, 16, 1);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 60, [&] {
      auto t = torch::linspace(-1, 1, 16).unsqueeze(1).requires_grad_();
      const auto u = torch::tanh(network->forward(t).to(torch::kFloat));
      const auto slope = torch::autograd::grad({u.sum()}, {t}, {}, true, /*create_graph=*/true)[0];
      return (slope - 0.5).pow(2).mean() + u[8].pow(2).mean();
    });
  });
}

/// A loss for each row, and two passes through one graph.
TEST_F(UnusualPrograms, LossForEachRow) {
  expect_trains_as_without_amp([](auto& amp) {
    const Saddle data;
    Layers model(2, 16, 1);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 50; ++step) {
      opt.zero_grad();
      const auto losses = (net->forward(data.x).to(torch::kFloat) - data.y).pow(2).squeeze(1);
      amp.log(losses.mean());
      {
        auto scaled_loss = amp.scale_loss(losses, opt);
        scaled_loss.backward(torch::full({32}, 0.5 / 32), /*retain_graph=*/true);
        scaled_loss.backward(torch::full({32}, 0.5 / 32));
      }
      opt.step();
    }
  });
}

/// Noise on the gradients that the step uses, and a hook on gradients in the graph.
TEST_F(UnusualPrograms, GradientsEditedInTheOptimizersGroups) {
  expect_trains_as_without_amp([](auto& amp) {
    const Saddle data;
    Layers model(2, 16, 1);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 50; ++step) {
      opt.zero_grad();
      auto output = net->forward(data.x);
      output.register_hook([](const Tensor& grad) { return grad * 0.5; });
      const auto loss = torch::mse_loss(output, data.y) * 2;
      amp.log(loss);
      amp.backward(loss, opt);
      const torch::NoGradGuard no_grad;
      for (auto& p : opt.param_groups()[0].params()) p.grad().add_(torch::randn_like(p.grad()), 0.001);
      opt.step();
    }
  });
}

/// Sharpness-aware: gradients are taken where the loss is worst nearby, and the weights put back before the step. The rate is
/// so small that no step would be seen in 16 bits.
TEST_F(UnusualPrograms, WeightsMovedAndRestoredBeforeTheStep) {
  expect_trains_as_without_amp(
      [](auto& amp) {
        const Saddle data;
        Layers model(2, 32, 1);
        torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
        auto [net, opt] = amp.initialize(model, optimizer);
        for (int step = 0; step < 100; ++step) {
          opt.zero_grad();
          const auto loss = data.loss(net);
          amp.log(loss);
          amp.backward(loss, opt);
          std::vector<Tensor> kept;
          for (auto& p : net->parameters()) {
            kept.push_back(p.detach().clone());
            const torch::NoGradGuard no_grad;
            p.add_(p.grad().sign().to(p.scalar_type()), 0.01);
          }
          opt.zero_grad();
          amp.backward(data.loss(net), opt);
          {
            const torch::NoGradGuard no_grad;
            for (size_t i = 0; i < kept.size(); ++i) net->parameters()[i].copy_(kept[i]);
          }
          opt.step();
        }
      },
      {"O0", "O1", "O2", "O4", "O5", "O6"});
}

/// The weights of a direction and a length.
struct WeightNormImpl : torch::nn::Module {
  WeightNormImpl() {
    direction = register_parameter("direction", torch::randn({16, 2}));
    length = register_parameter("length", torch::ones({16, 1}));
    head = register_module("head", torch::nn::Linear(16, 1));
  }
  Tensor forward(const Tensor& x) {
    const auto weight = direction * (length / direction.norm(2, 1, true));
    return head(torch::tanh(torch::linear(x, weight)));
  }
  Tensor direction, length;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(WeightNorm);

TEST_F(UnusualPrograms, WeightsComputedFromParameters) {
  expect_trains_as_without_amp([](auto& amp) {
    const Saddle data;
    WeightNorm model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 60, [&] { return data.loss(network); });
  });
}

}  // namespace
}  // namespace apex::test::programs
