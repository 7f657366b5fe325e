// Training loops with something unusual in them: several gradients, several runs, steps by hand.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class LoopPrograms : public AmpTest {};

struct Sheets {
  Tensor x = torch::randn({32, 2});
  Tensor y = (x.prod(1) > 0).to(torch::kLong);
};

/// Half of each batch is moved in the direction in which the loss grows. An extra backward pass computes this gradient, and
/// also leaves gradients in the model.
TEST_F(LoopPrograms, AdversarialExamples) {
  expect_trains_as_without_amp([](auto& amp) {
    const Sheets data;
    Layers model(2, 16, 2);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 60; ++step) {
      auto x = data.x.clone().requires_grad_();
      torch::cross_entropy_loss(net->forward(x), data.y).backward();
      const auto moved = (data.x + 0.02 * x.grad().sign()).detach();
      opt.zero_grad();
      const auto loss = torch::cross_entropy_loss(net->forward(torch::cat({data.x, moved})), torch::cat({data.y, data.y}));
      amp.log(loss);
      amp.backward(loss, opt);
      opt.step();
    }
  });
}

/// Differentiates the gradient with respect to the input.
TEST_F(LoopPrograms, GradientPenalty) {
  expect_trains_as_without_amp([](auto& amp) {
    const Sheets data;
    Layers model(2, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 60; ++step) {
      auto x = data.x.clone().requires_grad_();
      const auto logits = net->forward(x);
      const auto slope = torch::autograd::grad({logits.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
      const auto loss = torch::cross_entropy_loss(logits, data.y) + 0.001 * slope.pow(2).sum(1).mean();
      amp.log(loss);
      opt.zero_grad();
      amp.backward(loss, opt);
      opt.step();
    }
  });
}

/// A model and an optimizer for each fold; those of the last one are gone by then.
TEST_F(LoopPrograms, CrossValidation) {
  expect_trains_as_without_amp([](auto& amp) {
    const Sheets data;
    std::vector<double> first, last;
    for (int64_t fold = 0; fold < 3; ++fold) {
      const auto rows = torch::arange(32).index({torch::arange(32) % 3 != fold});
      Layers model(2, 16, 2);
      torch::optim::Adam optimizer(model->parameters(), adam(0.03));
      auto [net, opt] = amp.initialize(model, optimizer);
      for (int step = 0; step < 40; ++step) {
        const auto loss = torch::cross_entropy_loss(net->forward(data.x.index_select(0, rows)), data.y.index_select(0, rows));
        opt.zero_grad();
        amp.backward(loss, opt);
        opt.step();
        (step == 0 ? first : last).push_back(loss.template item<double>());
      }
    }
    amp.log(first[0] + first[1] + first[2]);
    amp.log(last[38] + last[77] + last[116]);
  });
}

/// Weights of two losses that are learned as well: parameters of the optimizer that are in no model.
TEST_F(LoopPrograms, ParametersOutsideTheModel) {
  expect_trains_as_without_amp([](auto& amp) {
    const Sheets data;
    Layers model(2, 16, 2);
    auto log_variance = torch::zeros({2}, torch::requires_grad());
    auto parameters = model->parameters();
    parameters.push_back(log_variance);
    torch::optim::Adam optimizer(parameters, adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 60; ++step) {
      const auto logits = net->forward(data.x);
      const auto losses =
          torch::stack({torch::cross_entropy_loss(logits, data.y), logits.to(torch::kFloat).pow(2).mean() * 0.01});
      const auto loss = (losses * (-log_variance).exp() + log_variance).sum();
      amp.log(losses[0]);
      opt.zero_grad();
      amp.backward(loss, opt);
      opt.step();
    }
    EXPECT_EQ(log_variance.scalar_type(), torch::kFloat);
    EXPECT_NE(log_variance[0].template item<float>(), 0);
  });
}

/// One loss, two optimizers: the layers are trained at rates and by rules of their own.
TEST_F(LoopPrograms, TwoOptimizersForOneLoss) {
  expect_trains_as_without_amp([](auto& amp) {
    const Sheets data;
    Layers model(2, 16, 2);
    torch::optim::Adam first(model->first->parameters(), adam(0.03));
    torch::optim::SGD second(model->second->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [net, opts] = amp.initialize(model, std::tie(first, second));
    auto& [opt_first, opt_second] = opts;
    for (int step = 0; step < 60; ++step) {
      const auto loss = torch::cross_entropy_loss(net->forward(data.x), data.y);
      amp.log(loss);
      net->zero_grad();
      amp.backward(loss, {opt_first, opt_second});
      opt_first.step();
      opt_second.step();
    }
  });
}

/// A warm-up written by hand, through the options of the optimizer's class, and weights initialized again after initialize.
TEST_F(LoopPrograms, LearningRatesAndWeightsSetByHand) {
  expect_trains_as_without_amp([](auto& amp) {
    const Sheets data;
    Layers model(2, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    torch::nn::init::xavier_uniform_(net->first->weight);
    torch::nn::init::zeros_(net->first->bias);
    for (int step = 0; step < 60; ++step) {
      for (auto& group : opt.param_groups()) {
        static_cast<torch::optim::SGDOptions&>(group.options()).lr(0.2 * std::min(1.0, (step + 1) / 10.0));
      }
      const auto loss = torch::cross_entropy_loss(net->forward(data.x), data.y);
      amp.log(loss);
      for (auto& p : net->parameters()) p.mutable_grad() = Tensor();
      amp.backward(loss, opt);
      opt.step();
    }
  });
}

/// REINFORCE: actions are drawn, and the loss is made of their probabilities.
TEST_F(LoopPrograms, PolicyGradient) {
  expect_trains_as_without_amp([](auto& amp) {
    Layers policy(2, 16, 2);
    torch::optim::Adam optimizer(policy->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(policy, optimizer);
    double baseline = 0.5;
    for (int step = 0; step < 80; ++step) {
      const auto state = torch::randn({64, 2});
      const auto log_probabilities = torch::log_softmax(net->forward(state), 1);
      const auto action = torch::multinomial(log_probabilities.detach().exp(), 1);
      const auto reward = (action.squeeze(1) == (state.select(1, 0) > 0)).to(torch::kFloat);
      const auto loss = -(log_probabilities.gather(1, action).squeeze(1) * (reward - baseline)).mean();
      baseline = 0.9 * baseline + 0.1 * reward.mean().template item<double>();
      amp.log(1 - baseline);
      opt.zero_grad();
      amp.backward(loss, opt);
      opt.step();
    }
  });
}

/// The embedding of one view identifies the other view of the same object.
TEST_F(LoopPrograms, ContrastiveLoss) {
  expect_trains_as_without_amp([](auto& amp) {
    const auto x = torch::randn({16, 4});
    Layers model(4, 16, 4);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 60; ++step) {
      const auto embed = [&net = net](const Tensor& view) {
        return torch::nn::functional::normalize(net->forward(view), torch::nn::functional::NormalizeFuncOptions().dim(1));
      };
      const auto one = embed(x + 0.1 * torch::randn_like(x)), other = embed(x + 0.1 * torch::randn_like(x));
      const auto loss = torch::cross_entropy_loss(one.matmul(other.t()) / 0.2, torch::arange(16));
      amp.log(loss);
      opt.zero_grad();
      amp.backward(loss, opt);
      opt.step();
    }
  });
}

}  // namespace
}  // namespace apex::test::programs
