// Programs that keep a second copy of weights: target networks, averages, teachers.
#include <deque>

#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class TargetPrograms : public AmpTest {};

struct Transition {
  Tensor state, next;
  int64_t action;
  double reward;
};

/// A walk on four places, worth 1 at its right end.
Transition walk(int64_t place, int64_t action) {
  const int64_t next = std::min<int64_t>(3, std::max<int64_t>(0, place + (action == 1 ? 1 : -1)));
  const auto one_hot = [](int64_t index) { return torch::one_hot(torch::tensor(index), 4).to(torch::kFloat); };
  return {one_hot(place), one_hot(next), action, next == 3 ? 1.0 : 0.0};
}

void polyak_through_data(torch::nn::Module& target, const torch::nn::Module& source) {
  const auto from = source.parameters();
  auto to = target.parameters();
  for (size_t i = 0; i < to.size(); ++i) to[i].data().mul_(0.8).add_(from[i].data(), 0.2);
}

void polyak_without_grad(torch::nn::Module& target, const torch::nn::Module& source) {
  const torch::NoGradGuard no_grad;
  const auto from = source.parameters();
  auto to = target.parameters();
  for (size_t i = 0; i < to.size(); ++i) to[i].mul_(0.8).add_(from[i], 0.2);
}

/// Q learning from a replay buffer; the figure is how far the values of four places are from the true ones. `target` is a plain
/// FP32 module that takes the network's weights.
template <class Amp>
void train_q_values(Amp& amp, void (*polyak)(torch::nn::Module&, const torch::nn::Module&)) {
  Layers online(4, 16, 2), target(4, 16, 2);
  torch::optim::Adam optimizer(online->parameters(), adam(0.02));
  auto [net, opt] = amp.initialize(online, optimizer);
  polyak(*target, *net);
  std::deque<Transition> replay;
  for (int64_t i = 0; i < 64; ++i) replay.push_back(walk(i % 4, torch::randint(2, {1}).item<int64_t>()));
  const auto truth = torch::tensor({0.5, 1.0, 2.0, 2.0});
  for (int step = 0; step < 60; ++step) {
    std::vector<Tensor> states, next;
    std::vector<int64_t> actions;
    std::vector<float> rewards;
    for (int64_t i = 0; i < 32; ++i) {
      const auto& t = replay[torch::randint(64, {1}).item<int64_t>()];
      states.push_back(t.state), next.push_back(t.next), actions.push_back(t.action), rewards.push_back(t.reward);
    }
    const auto q = net->forward(torch::stack(states)).gather(1, torch::tensor(actions).unsqueeze(1)).squeeze(1);
    Tensor wanted;
    {
      const torch::NoGradGuard no_grad;
      wanted = torch::tensor(rewards) + 0.5 * std::get<0>(target->forward(torch::stack(next)).max(1));
    }
    const auto loss = torch::smooth_l1_loss(q, wanted);
    amp.log((net->forward(torch::eye(4)).select(1, 1).detach() - truth).abs().max());
    opt.zero_grad();
    amp.backward(loss, opt);
    opt.step();
    polyak(*target, *net);
  }
}

TEST_F(TargetPrograms, QLearningWithATargetUpdatedThroughData) {
  expect_trains_as_without_amp([](auto& amp) { train_q_values(amp, polyak_through_data); });
}

TEST_F(TargetPrograms, QLearningWithATargetUpdatedUnderNoGrad) {
  expect_trains_as_without_amp([](auto& amp) { train_q_values(amp, polyak_without_grad); });
}

/// The average is a deep copy that is evaluated in the end in the model's place: its weights are copied in.
TEST_F(TargetPrograms, AverageOfWeightsCopiedBackForEvaluation) {
  expect_trains_as_without_amp([](auto& amp) {
    Layers model(4, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), 0.2);
    auto [net, opt] = amp.initialize(model, optimizer);
    std::vector<Tensor> average;
    for (const auto& p : net->parameters()) average.push_back(p.detach().to(torch::kFloat, false, /*copy=*/true));
    const auto x = torch::randn({32, 4});
    const auto y = torch::stack({x.select(1, 0), -x.select(1, 1)}, 1);
    auto& network = net;
    train(amp, opt, 60, [&] { return torch::mse_loss(network->forward(x + 0.1 * torch::randn_like(x)), y); });
    for (int step = 0; step < 10; ++step) {
      opt.zero_grad();
      amp.backward(torch::mse_loss(net->forward(x), y), opt);
      opt.step();
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < average.size(); ++i) average[i].lerp_(net->parameters()[i].to(torch::kFloat), 0.5);
    }
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < average.size(); ++i) net->parameters()[i].copy_(average[i]);
    amp.log(torch::mse_loss(net->forward(x), y));
  });
}

TEST_F(TargetPrograms, DistillationWithAFrozenTeacher) {
  expect_trains_as_without_amp([](auto& amp) {
    Layers teacher(4, 32, 2), student(4, 8, 2);
    for (auto& p : teacher->parameters()) p.set_requires_grad(false);
    for (auto& p : teacher->parameters()) p.mul_(3);
    teacher->eval();
    torch::optim::Adam optimizer(student->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(student, optimizer);
    const auto x = torch::randn({32, 4});
    auto& network = net;
    train(amp, opt, 60, [&] {
      const auto wanted = torch::softmax(teacher->forward(x), 1);
      return torch::kl_div(torch::log_softmax(network->forward(x), 1), wanted, at::Reduction::Mean);
    });
  });
}

/// The teacher is handed to initialize as well.
TEST_F(TargetPrograms, DistillationWithATeacherInitializedToo) {
  expect_trains_as_without_amp([](auto& amp) {
    Layers teacher(4, 32, 2), student(4, 8, 2);
    for (auto& p : teacher->parameters()) p.set_requires_grad(false);
    for (auto& p : teacher->parameters()) p.mul_(3);
    torch::optim::Adam optimizer(student->parameters(), adam(0.03));
    auto [nets, opt] = amp.initialize(std::tie(student, teacher), optimizer);
    auto& [pupil, master] = nets;
    const auto x = torch::randn({32, 4});
    for (int step = 0; step < 60; ++step) {
      opt.zero_grad();
      const auto loss = torch::mse_loss(pupil->forward(x), master->forward(x));
      amp.log(loss);
      amp.backward(loss, opt);
      opt.step();
    }
  });
}

/// With soft updates that 16-bit weights would round away.
TEST_F(TargetPrograms, AFloat32TargetFollowsTheMasterWeights) {
  for (const char* level : {"O2", "O5", "O6"}) {
    SCOPED_TRACE(level);
    Layers model(4, 8, 2), target(4, 8, 2);
    torch::optim::SGD optimizer(model->parameters(), 0.01);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    const auto x = torch::randn({16, 4});
    std::vector<Tensor> exact;
    for (const auto& p : target->parameters()) exact.push_back(p.detach().to(torch::kDouble));
    bool are_finer = false;
    for (int step = 0; step < 200; ++step) {
      opt.zero_grad();
      { amp::scale_loss(net->forward(x).square().mean(), opt).backward(); }
      opt.step();
      const torch::NoGradGuard no_grad;
      const auto masters = amp::master_params(opt);
      const auto weights = net->parameters();
      auto to = target->parameters();
      for (size_t i = 0; i < to.size(); ++i) {
        EXPECT_TRUE(torch::equal(masters[i].to(weights[i].scalar_type()), weights[i])) << "those of step " << step;
        are_finer |= !torch::equal(weights[i].to(torch::kFloat), masters[i]);
        to[i].lerp_(masters[i], 0.005);
        exact[i].lerp_(masters[i].to(torch::kDouble), 0.005);
      }
    }
    EXPECT_TRUE(are_finer) << "masters have bits that the weights lack";
    // Each of 200 steps rounds a number below 1, by 2^-25 at most, and a part of it that is smaller.
    for (size_t i = 0; i < exact.size(); ++i) {
      const auto off = target->parameters()[i].detach().to(torch::kDouble) - exact[i];
      EXPECT_LT(off.abs().max().item<double>(), 200 * 0x1p-24);
    }
  }
}

/// Each weight differs from its source by a tenth.
TEST_F(TargetPrograms, ABFloat16TargetRoundsItsSoftUpdatesAway) {
  const auto source = torch::rand({64}) + 0.5;
  auto target = (1.1 * source).to(torch::kBFloat16);
  const auto before = target.clone();
  for (int step = 0; step < 100; ++step) target.copy_(target.to(torch::kFloat).lerp(source, 0.005));
  EXPECT_TRUE(torch::equal(target, before));
}

}  // namespace
}  // namespace apex::test::programs
