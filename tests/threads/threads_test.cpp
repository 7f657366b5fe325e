// Several threads at once, each with a level and registrations of its own. Built with `--preset tsan` it shows that nothing of
// the engine's is shared without care.
#include <torch/optim/sgd.h>

#include <thread>

#include "tests/amp/support.h"

#if defined(__SANITIZE_THREAD__)
// LibTorch is not instrumented: where it drops the last reference to a tensor, the counting that orders this after another
// thread's use is not seen, and the freeing is called a race. Only frees are left out; everything else is watched.
extern "C" const char* __tsan_default_suppressions() { return "race_top:operator delete\n"; }
#endif

namespace apex::test {
namespace {

using torch::Tensor;

struct Outcome {
  std::vector<float> losses;
  at::ScalarType output = torch::kLong, custom = torch::kLong;
};

// Trains on this thread, on data of its own, and calls the function that this thread has registered.
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

TEST_F(Threads, FourLevelsAndRegistrationsAtOnceGiveWhatTheyGiveAlone) {
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

TEST_F(Threads, OneHandleServesManyThreads) {
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
