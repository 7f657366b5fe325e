// Programs that write to the weights.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class WrittenPrograms : public AmpTest {};

template <class Amp, class Clamp>
void train_wgan(Amp& amp, const Clamp& clamp) {
  Layers generator(2, 8, 2), critic(2, 8, 1);
  torch::optim::RMSprop generator_optimizer(generator->parameters(), torch::optim::RMSpropOptions(0.02).eps(1e-3));
  torch::optim::RMSprop critic_optimizer(critic->parameters(), torch::optim::RMSpropOptions(0.02).eps(1e-3));
  auto [nets, opts] = amp.initialize(std::tie(generator, critic), std::tie(generator_optimizer, critic_optimizer));
  auto& [g, d] = nets;
  auto& [opt_g, opt_d] = opts;
  for (int step = 0; step < 50; ++step) {
    for (int turn = 0; turn < 2; ++turn) {
      opt_d.zero_grad();
      const auto fake = g->forward(torch::randn({32, 2})).detach();
      amp.backward(d->forward(fake).mean() - d->forward(real_points()).mean(), opt_d);
      opt_d.step();
      // RMSprop moves a weight by at most rate / sqrt(1 - alpha) = 0.2 beyond the 0.25 to which it was clamped, and 16 bits
      // round 0.45 by 2^-10. Masters that do not see the clamp begin at up to 0.7 and have no bound.
      if (step + turn > 0) {
        for (const auto& p : d->parameters()) EXPECT_LE(p.abs().max().template item<float>(), 0.46f);
      }
      for (auto& p : d->parameters()) clamp(p);
    }
    opt_g.zero_grad();
    const auto fake = g->forward(torch::randn({32, 2}));
    amp.log(distance_from_real(fake));
    amp.backward(-d->forward(fake).mean(), opt_g);
    opt_g.step();
  }
}

TEST_F(WrittenPrograms, WganClampingItsCritic) {
  expect_trains_as_without_amp([](auto& run) {
    train_wgan(run, [](Tensor& p) {
      const torch::NoGradGuard no_grad;
      p.clamp_(-0.25, 0.25);
    });
  });
}

/// Writes through data() leave no trace on the parameter: on a CPU a sample of its values shows them.
TEST_F(WrittenPrograms, WganClampingThroughData) {
  expect_trains_as_without_amp([](auto& amp) { train_wgan(amp, [](Tensor& p) { p.data().clamp_(-0.25, 0.25); }); });
}

/// The last steps climb, so the best weights, which were kept, are put back.
TEST_F(WrittenPrograms, EarlyStoppingRestoresTheBestWeights) {
  expect_trains_as_without_amp([](auto& amp) {
    Layers model(4, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto x = torch::randn({32, 4});
    const auto y = torch::stack({x.select(1, 0), -x.select(1, 1)}, 1);
    double best = 1e9;
    std::vector<Tensor> kept;
    const auto evaluate = [&x, &y](auto& network) {
      const torch::NoGradGuard no_grad;
      return torch::mse_loss(network->forward(x), y).template item<double>();
    };
    for (int step = 0; step < 40; ++step) {
      const double now = evaluate(net);
      amp.log(now);
      if (now < best) {
        best = now;
        kept.clear();
        for (const auto& p : net->parameters()) kept.push_back(p.detach().clone());
      }
      opt.zero_grad();
      amp.backward(torch::mse_loss(net->forward(x), y) * (step < 35 ? 1.0 : -1.0), opt);
      opt.step();
    }
    const auto parameters = net->parameters();
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < kept.size(); ++i) parameters[i].copy_(kept[i]);
    }
    EXPECT_EQ(evaluate(net), best);
    amp.log(evaluate(net));
    // Training continues from these weights.
    opt.zero_grad();
    amp.backward(torch::mse_loss(net->forward(x), y), opt);
    opt.step();
    EXPECT_LT(evaluate(net), best);
  });
}

/// A linear probe of the model's features: a separate model with a plain optimizer, trained on the same thread.
TEST_F(WrittenPrograms, ProbeTrainedWithoutAmp) {
  expect_trains_as_without_amp([](auto& amp) {
    Layers model(4, 16, 2), probe(16, 8, 1);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto x = torch::randn({32, 4});
    const auto y = torch::stack({x.select(1, 0), -x.select(1, 1)}, 1);
    for (int step = 0; step < 20; ++step) {
      opt.zero_grad();
      amp.backward(torch::mse_loss(net->forward(x), y), opt);
      opt.step();
    }
    torch::optim::SGD plain(probe->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
    const auto features = torch::relu(x.matmul(torch::randn({4, 16})));
    const auto wanted = x.sum(1, true);
    for (int step = 0; step < 60; ++step) {
      plain.zero_grad();
      const auto loss = torch::mse_loss(probe->forward(features).to(torch::kFloat), wanted);
      amp.log(loss);
      loss.backward();
      plain.step();
    }
  });
}

}  // namespace
}  // namespace apex::test::programs
