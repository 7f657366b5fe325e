// Programs that train or evaluate on another thread than the one that called initialize.
#include <thread>

#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class ThreadPrograms : public AmpTest {};

struct Rings {
  Tensor x = torch::randn({32, 2});
  Tensor y = (x.norm(2, 1, true) - 1).abs();
  template <class Net>
  Tensor loss(Net& net) const {
    return torch::mse_loss(net->forward(x), y);
  }
};

/// Runs `f` on a new thread and rethrows its exception.
template <class F>
void on_a_thread(F f) {
  std::exception_ptr error;
  std::thread thread([&] {
    try {
      f();
    } catch (...) {
      error = std::current_exception();
    }
  });
  thread.join();
  if (error) std::rethrow_exception(error);
}

TEST_F(ThreadPrograms, EvaluationOnAnotherThread) {
  expect_trains_as_without_amp([](auto& amp) {
    const Rings rings;
    Layers model(2, 16, 1);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 40; ++step) {
      on_a_thread([&rings, &amp, network = net]() mutable {
        const torch::NoGradGuard no_grad;
        const auto output = network->forward(rings.x);
        amp.output(output);
        amp.log(torch::mse_loss(output, rings.y));
      });
      opt.zero_grad();
      amp.backward(rings.loss(net), opt);
      opt.step();
    }
  });
}

TEST_F(ThreadPrograms, TrainingOnAnotherThread) {
  expect_trains_as_without_amp([](auto& amp) {
    const Rings rings;
    Layers model(2, 16, 1);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    auto& handle = opt;
    on_a_thread([&] { train(amp, handle, 40, [&] { return rings.loss(network); }); });
  });
}

TEST_F(ThreadPrograms, EverythingOnAThread) {
  expect_trains_as_without_amp([](auto& amp) {
    on_a_thread([&] {
      const Rings rings;
      Layers model(2, 16, 1);
      torch::optim::Adam optimizer(model->parameters(), adam(0.03));
      auto [net, opt] = amp.initialize(model, optimizer);
      auto& network = net;
      train(amp, opt, 40, [&] { return rings.loss(network); });
    });
  });
}

/// The original on another thread is cast by the guard.
TEST_F(ThreadPrograms, TheOriginalOnAnotherThreadUnderTheGuard) {
  expect_trains_as_without_amp([](auto& amp) {
    const Rings rings;
    Layers model(2, 16, 1);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& handle = opt;
    on_a_thread([&] {
      const auto casts = amp.enable_casts();
      train(amp, handle, 40, [&] { return rings.loss(model); });
    });
  });
}

/// The gradients are made on the threads, one after the other; the step is taken here.
TEST_F(ThreadPrograms, BackwardOnOtherThreads) {
  expect_trains_as_without_amp([](auto& amp) {
    const Rings rings;
    Layers model(2, 16, 1);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    for (int step = 0; step < 40; ++step) {
      opt.zero_grad();
      const auto loss = rings.loss(net);
      amp.log(loss);
      {
        auto scaled_loss = amp.scale_loss(loss, opt);
        on_a_thread([&] { scaled_loss.backward(); });
      }
      opt.step();
      on_a_thread([&] {
        const torch::NoGradGuard no_grad;
        EXPECT_GT(rings.loss(network).template item<float>(), 0);
      });
    }
  });
}

}  // namespace
}  // namespace apex::test::programs
