// Several concurrent threads, each with its own level and registrations. Under ThreadSanitizer it checks casts for races.
#include <torch/optim/sgd.h>

#include <thread>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

struct Outcome {
  std::vector<float> losses;
  at::ScalarType output = torch::kLong, custom = torch::kLong;
};

// Trains on this thread with its own data, and calls the function that this thread has registered.
Outcome train(int seed, amp::Model<Mlp>& net, torch::optim::Optimizer& opt, const Mlp& original) {
  Outcome outcome;
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  const Tensor x = torch::randn({8, 6}, generator), y = torch::randn({8, 3}, generator);
  for (int i = 0; i < 6; ++i) {
    const Tensor output = net->forward(x);
    outcome.output = output.scalar_type();
    const Tensor loss = torch::mse_loss(output.to(torch::kFloat), y);
    outcome.losses.push_back(loss.item<float>());
    for (auto& p : original->parameters()) p.mutable_grad().reset();
    {
      auto scaled = amp::scale_loss(loss, opt);
      scaled.backward();
    }
    opt.step();
  }
  return outcome;
}

struct Threads : AmpTest {
  const std::vector<std::string> levels{"O1", "O4", "O2", "O0"};
  const std::vector<std::string> functions{"aten::sigmoid", "aten::tanh", "aten::relu", "aten::mish"};
  const std::vector<Tensor (*)(const Tensor&)> calls{torch::sigmoid, torch::tanh, torch::relu, torch::mish};

  // One set-up, made, trained and used on the calling thread.
  Outcome whole_run(size_t i, const Mlp& start) const {
    Mlp model;
    for (size_t k = 0; k < model->parameters().size(); ++k)
      model->parameters()[k].set_data(start->parameters()[k].detach().clone());
    torch::optim::SGD optimizer(model->parameters(), 0.05);
    auto [net, opt] = amp::initialize(model, optimizer, levels[i], quiet().loss_scale(128.0));
    amp::register_half_function(functions[i]);
    Outcome outcome = train(static_cast<int>(i), net, opt, model);
    outcome.custom = calls[i](torch::ones({2})).scalar_type();
    amp::unregister_function(functions[i]);
    return outcome;
  }
};

TEST_F(Threads, FourLevelsAndRegistrationsConcurrentlyGiveTheSameResults) {
  torch::manual_seed(3);
  const Mlp start;
  std::vector<Outcome> alone, together(levels.size());
  for (size_t i = 0; i < levels.size(); ++i) {
    alone.push_back(whole_run(i, start));
    amp::reset();
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < levels.size(); ++i) {
    threads.emplace_back([&, i] { together[i] = whole_run(i, start); });
  }
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < levels.size(); ++i) {
    EXPECT_EQ(together[i].losses, alone[i].losses) << levels[i];
    EXPECT_EQ(together[i].output, alone[i].output) << levels[i];
    EXPECT_EQ(together[i].custom, alone[i].custom) << levels[i];
  }
  EXPECT_EQ(alone[0].custom, torch::kHalf);
  EXPECT_EQ(alone[1].custom, torch::kBFloat16);
  EXPECT_EQ(alone[3].custom, torch::kFloat);
}

// Initialized here, trained and evaluated entirely over there: the losses run after the handle's forward.
TEST_F(Threads, TrainingInAnotherThreadGivesTheSameResult) {
  torch::manual_seed(3);
  const Mlp start;
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    const auto run = [&](bool elsewhere) {
      Mlp model;
      for (size_t k = 0; k < model->parameters().size(); ++k)
        model->parameters()[k].set_data(start->parameters()[k].detach().clone());
      torch::optim::SGD optimizer(model->parameters(), 0.05);
      auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(128.0));
      std::vector<Tensor> seen;
      auto steps = [&, amped = net, &handle = opt]() mutable {
        for (int i = 0; i < 4; ++i) {
          const Tensor loss = torch::nn::functional::mse_loss(amped->forward(features()), torch::ones({4, 3}));
          seen.push_back(loss.detach());
          {
            auto scaled = amp::scale_loss(loss, handle);
            scaled.backward();
          }
          handle.step();
          handle.zero_grad();
          const torch::NoGradGuard no_grad;
          seen.push_back(torch::softmax(model->forward(features()), 1));
        }
      };
      if (elsewhere) {
        std::thread(steps).join();
      } else {
        steps();
      }
      amp::reset();
      return seen;
    };
    const auto here = run(false), there = run(true);
    for (size_t i = 0; i < here.size(); ++i) {
      EXPECT_EQ(here[i].scalar_type(), there[i].scalar_type()) << level << ", " << i;
      EXPECT_TRUE(torch::equal(here[i], there[i])) << level << ", " << i;
    }
  }
}

TEST_F(Threads, TheGuardCastsALossInAnotherThread) {
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor output = net->forward(features()).detach();
  const auto loss_type = [&](bool guarded) {
    at::ScalarType type = torch::kLong;
    std::thread([&] {
      std::optional<amp::enable_casts> on;
      if (guarded) on.emplace();
      type = torch::mse_loss(output, torch::ones({4, 3}).to(torch::kHalf)).scalar_type();
    }).join();
    return type;
  };
  EXPECT_EQ(loss_type(false), torch::kHalf);
  EXPECT_EQ(loss_type(true), torch::kFloat);
}

TEST_F(Threads, OneHandleCanBeUsedByManyThreads) {
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor want = net->forward(features());
  std::vector<std::thread> threads;
  std::atomic<int> equal{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) {
        equal += torch::equal(net->forward(features()), want);
        if (k % 5 == 0) amp::clear_cast_cache();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, 80);
}

}  // namespace
}  // namespace apex::test
