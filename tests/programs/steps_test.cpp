// Code between the backward pass and the step, and around optimizers: accumulation, clipping, schedulers, groups.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class StepPrograms : public AmpTest {};

/// Four features and two targets for each sample.
struct Regression {
  Tensor x = torch::randn({32, 4});
  Tensor y = torch::stack({x.select(1, 0) * x.select(1, 1), x.select(1, 2) - x.select(1, 3)}, 1);
  template <class Net>
  Tensor loss(Net& net) const {
    return torch::mse_loss(net->forward(x), y);
  }
};

TEST_F(StepPrograms, AccumulationOverFourPasses) {
  expect_trains_as_without_amp([](auto& amp) {
    const Regression data;
    Layers model(4, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 30; ++step) {
      opt.zero_grad();
      for (int part = 0; part < 4; ++part) {
        const auto rows = torch::arange(8 * part, 8 * part + 8);
        const auto loss = torch::mse_loss(net->forward(data.x.index_select(0, rows)), data.y.index_select(0, rows)) / 4;
        amp.backward(loss, opt);
      }
      amp.log(data.loss(net));
      opt.step();
    }
  });
}

TEST_F(StepPrograms, AccumulationWithDelayedUnscaling) {
  expect_trains_as_without_amp([](auto& amp) {
    const Regression data;
    Layers model(4, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int pass = 0; pass < 60; ++pass) {
      const bool last = pass % 2 == 1;
      const auto rows = torch::arange(16) + (last ? 16 : 0);
      const auto loss = torch::mse_loss(net->forward(data.x.index_select(0, rows)), data.y.index_select(0, rows)) / 2;
      amp.backward(loss, opt, amp::ScaleLossOptions().delay_unscale(!last));
      if (!last) continue;
      opt.step();
      opt.zero_grad();
      amp.log(data.loss(net));
    }
  });
}

/// Trains with gradients that `clip(amp, net, opt)` makes far shorter.
template <class Clip>
auto clipping_program(Clip clip) {
  return [clip](auto& amp) {
    const Regression data;
    Layers model(4, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 40; ++step) {
      opt.zero_grad();
      const auto loss = data.loss(net) * 10;
      amp.log(loss);
      amp.backward(loss, opt);
      clip(amp, net, opt);
      opt.step();
    }
  };
}

/// amp adds up the norm in another order than torch.
TEST_F(StepPrograms, ClippingOfMasterParams) {
  expect_trains_as_without_amp(clipping_program([](auto& amp, auto&, auto& opt) { amp.clip_grad_norm_(opt, 0.1); }), kAllLevels,
                               /*exact=*/false);
}

/// Without masters the step uses the model's gradients.
TEST_F(StepPrograms, ClippingOfTheModelsParameters) {
  const auto clip = [](auto&, auto& net, auto&) { torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1); };
  expect_trains_as_without_amp(clipping_program(clip), {"O0", "O1", "O3", "O4"});
}

/// Hooks run within the block, and see the loss scale.
TEST_F(StepPrograms, ClampingInHooks) {
  const auto program = [](auto& amp) {
    constexpr double kLimit = 0.01;
    const Regression data;
    Layers model(4, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), 0.5);
    auto [net, opt] = amp.initialize(model, optimizer);
    for (auto& param : net->parameters()) {
      param.register_hook([&amp](const torch::Tensor& grad) {
        const double limit = kLimit * amp.loss_scale();
        return grad.clamp(-limit, limit);
      });
    }
    auto& network = net;
    train(amp, opt, 60, [&] { return data.loss(network); });
  };
  expect_trains_as_without_amp(program);
}

TEST_F(StepPrograms, SchedulerMadeBeforeInitialize) {
  expect_trains_as_without_amp([](auto& amp) {
    const Regression data;
    Layers model(4, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.4).momentum(0.5));
    torch::optim::StepLR scheduler(optimizer, 10, 0.3);
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 40; ++step) {
      opt.zero_grad();
      const auto loss = data.loss(net);
      amp.log(loss);
      amp.backward(loss, opt);
      opt.step();
      scheduler.step();
    }
    EXPECT_NEAR(opt.param_groups()[0].options().get_lr(), 0.4 * std::pow(0.3, 3),
                1e-17);  // three float64 products, each off by 2^-53 of itself
  });
}

TEST_F(StepPrograms, PlateauSchedulerMadeAfterInitialize) {
  expect_trains_as_without_amp([](auto& amp) {
    const Regression data;
    Layers model(4, 16, 2);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1).eps(1e-4));
    auto [net, opt] = amp.initialize(model, optimizer);
    torch::optim::ReduceLROnPlateauScheduler scheduler(opt, torch::optim::ReduceLROnPlateauScheduler::min, 0.5f, 2);
    for (int step = 0; step < 40; ++step) {
      opt.zero_grad();
      const auto loss = data.loss(net);
      amp.log(loss);
      amp.backward(loss, opt);
      opt.step();
      scheduler.step(loss.template item<float>());
    }
  });
}

TEST_F(StepPrograms, OptimizerBehindUniquePtr) {
  expect_trains_as_without_amp([](auto& amp) {
    const Regression data;
    Layers model(4, 16, 2);
    std::unique_ptr<torch::optim::Optimizer> optimizer =
        std::make_unique<torch::optim::Adagrad>(model->parameters(), torch::optim::AdagradOptions(0.1).eps(1e-4));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 40; ++step) {
      opt->zero_grad();
      const auto loss = data.loss(net);
      amp.log(loss);
      amp.backward(loss, opt);
      opt->step();
    }
  });
}

/// A group for each layer, the second with its own learning rate; a third is added later.
TEST_F(StepPrograms, GroupsWithOptionsAndOneAddedDuringTraining) {
  expect_trains_as_without_amp([](auto& amp) {
    using Group = torch::optim::OptimizerParamGroup;
    const Regression data;
    Layers model(4, 16, 2);
    std::vector<Group> groups;
    groups.emplace_back(std::vector<Tensor>{model->first->weight});
    groups.emplace_back(model->second->parameters(), std::make_unique<torch::optim::SGDOptions>(0.05));
    torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.2).momentum(0.5));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int step = 0; step < 40; ++step) {
      if (step == 10) opt.add_param_group(Group({net->first->bias}, std::make_unique<torch::optim::SGDOptions>(0.1)));
      net->zero_grad();
      const auto loss = data.loss(net);
      amp.log(loss);
      amp.backward(loss, opt);
      opt.step();
    }
  });
}

TEST_F(StepPrograms, LayersFrozenAndUnfrozen) {
  expect_trains_as_without_amp([](auto& amp) {
    const Regression data;
    Layers model(4, 16, 2);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const auto freeze = [](torch::nn::Module& part, bool frozen) {
      for (auto& p : part.parameters()) p.set_requires_grad(!frozen);
    };
    freeze(*model->first, true);
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto frozen_weight = net->first->weight.detach().clone();
    for (int step = 0; step < 60; ++step) {
      if (step == 20) {
        EXPECT_TRUE(torch::equal(net->first->weight, frozen_weight));
        freeze(*net->first, false);
      }
      if (step == 50) freeze(*net->second, true);
      opt.zero_grad();
      const auto loss = data.loss(net);
      amp.log(loss);
      amp.backward(loss, opt);
      opt.step();
    }
    EXPECT_FALSE(torch::equal(net->first->weight, frozen_weight));
  });
}

/// LBFGS calls a closure, which masters and a scale that moves cannot serve.
TEST_F(StepPrograms, Lbfgs) {
  const auto program = [](auto& amp) {
    const Regression data;
    Layers model(4, 8, 2);
    torch::optim::LBFGS optimizer(model->parameters(), torch::optim::LBFGSOptions(0.3).max_iter(4));
    auto [net, opt] = amp.initialize(model, optimizer, amp::InitializeOptions().loss_scale(1.0));
    auto& network = net;
    auto& lbfgs = opt;
    for (int step = 0; step < 8; ++step) {
      const auto closure = [&] {
        lbfgs.zero_grad();
        const auto loss = data.loss(network);
        amp.backward(loss, lbfgs);
        return loss;
      };
      amp.log(opt.step(closure));
    }
  };
  expect_trains_as_without_amp(program, {"O0", "O1", "O4"});
}

/// Rows of a table that is too large for dense gradients, kept out of the model and in a plain optimizer. amp does not see that
/// one, so the program takes the scale out of its gradients.
TEST_F(StepPrograms, SparseEmbeddingWithAPlainOptimizer) {
  expect_trains_as_without_amp([](auto& amp) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(20, 4).sparse(true));
    Layers model(4, 16, 1);
    torch::optim::SGD table_optimizer(table->parameters(), 0.5);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp.initialize(model, optimizer, amp::InitializeOptions().loss_scale(128.0));
    const auto rows = torch::randint(20, {32});
    const auto y = torch::randn({20, 1}).index_select(0, rows);
    for (int step = 0; step < 60; ++step) {
      opt.zero_grad();
      table_optimizer.zero_grad();
      const auto loss = torch::mse_loss(net->forward(table(rows)), y);
      amp.log(loss);
      double scale = 1;
      {
        auto scaled_loss = amp.scale_loss(loss, opt);
        scaled_loss.backward();
        scale = (scaled_loss.tensor() / loss).template item<double>();
      }
      table->weight.grad()._values().div_(scale);
      opt.step();
      table_optimizer.step();
    }
  });
}

}  // namespace
}  // namespace apex::test::programs
