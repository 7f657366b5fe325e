#include <cmath>
#include <filesystem>
#include <sstream>

#include <ATen/ATen.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "config/config.h"
#include "data/load.h"
#include "easy_digits.h"
#include "errors.h"
#include "logging/run_folder.h"
#include "models/models.h"
#include "options.h"
#include "scratch.h"
#include "tests/errors.h"
#include "training/optimizer.h"
#include "training/schedule.h"
#include "training/torch_amp.h"
#include "training/trainer.h"

namespace {

using apex::test::message_of;
using train::UserError;

train::Config scheduled(const std::string& type) {
  train::Config config;
  config.optimizer.type = "SGD";
  config.optimizer.lr = 0.4;
  config.epochs = 10;
  config.schedule.type = type;
  return config;
}

std::unique_ptr<torch::optim::Optimizer> one_weight(const train::Config& config) {
  return train::make_optimizer(config.optimizer, {at::ones({1}).requires_grad_()});
}

/// Of a run with five steps an epoch that begins anew at this step.
double rate_at(const train::Config& config, int64_t step) {
  const auto optimizer = one_weight(config);
  const auto schedule = train::make_schedule(config, *optimizer, step, 5);
  EXPECT_EQ(schedule->last_epoch(), step);
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), schedule->get_last_lr()[0]);
  return schedule->get_last_lr()[0];
}

TEST(Schedule, NoneIsConstant) {
  EXPECT_EQ(rate_at(scheduled("none"), 0), 0.4);
  EXPECT_EQ(rate_at(scheduled("none"), 49), 0.4);
}

TEST(Schedule, StepFallsByGammaAtEachStage) {
  auto config = scheduled("step");
  config.schedule.step_epochs = 3;
  config.schedule.gamma = 0.5;
  EXPECT_EQ(rate_at(config, 14), 0.4);
  EXPECT_EQ(rate_at(config, 15), 0.2);
  EXPECT_EQ(rate_at(config, 30), 0.1);
}

// EXPECT_DOUBLE_EQ allows 4 units in the last place. In the next two tests some six roundings of half a unit lead to a rate.
TEST(Schedule, CosineGoesFromFullToFinal) {
  auto config = scheduled("cosine");
  config.schedule.final_lr = 0.1;
  EXPECT_DOUBLE_EQ(rate_at(config, 0), 0.4);
  EXPECT_DOUBLE_EQ(rate_at(config, 25), 0.25);
  EXPECT_DOUBLE_EQ(rate_at(config, 50), 0.1);
}

TEST(Schedule, WarmupRisesStepByStepToTheFullRate) {
  auto config = scheduled("none");
  config.schedule.warmup_epochs = 2;
  EXPECT_DOUBLE_EQ(rate_at(config, 0), 0.04);
  EXPECT_EQ(rate_at(config, 4), 0.2);
  EXPECT_EQ(rate_at(config, 9), 0.4);
  EXPECT_EQ(rate_at(config, 10), 0.4);
}

// The next rates follow from the rates before: each of up to 50 steps adds up to three roundings of half a unit of 2^-53.
constexpr double kFiftySteps = 50 * 3 * 1.2e-16;

TEST(Schedule, LinearFallsInEqualStepsAfterTheWarmup) {
  auto config = scheduled("linear");
  config.schedule.final_lr = 0.1;
  config.schedule.warmup_epochs = 2;
  EXPECT_DOUBLE_EQ(rate_at(config, 0), 0.04);
  EXPECT_NEAR(rate_at(config, 4), 0.2, kFiftySteps);
  EXPECT_EQ(rate_at(config, 10), 0.4);
  EXPECT_NEAR(rate_at(config, 30), 0.25, kFiftySteps);
  EXPECT_NEAR(rate_at(config, 50), 0.1, kFiftySteps);
}

TEST(Schedule, PolynomialFallsToZero) {
  auto config = scheduled("polynomial");
  config.schedule.power = 2;
  EXPECT_EQ(rate_at(config, 0), 0.4);
  EXPECT_NEAR(rate_at(config, 25), 0.1, kFiftySteps);
  EXPECT_EQ(rate_at(config, 50), 0);
}

TEST(Schedule, OneCycleRisesToTheRateAndFalls) {
  auto config = scheduled("one_cycle");
  config.schedule.pct_start = 0.5;
  EXPECT_NEAR(rate_at(config, 0), 0.4 / 25, 1e-16);  // the distance from 0.4 is rounded to 2^-54, as at the end
  EXPECT_DOUBLE_EQ(rate_at(config, 24), 0.4);
  EXPECT_NEAR(rate_at(config, 49), 0.4 / 25 / 1e4, 1e-16);
  EXPECT_NO_THROW(rate_at(config, 80));  // in the doctor's runs
  config.epochs = 2;
  config.schedule.pct_start = 0.1;
  EXPECT_EQ(message_of<UserError>([&] { rate_at(config, 0); }).rfind("key 'schedule': OneCycleLR: with pct_start = 0.1", 0),
            0u);
}

TEST(Schedule, OneCycleCyclesMomentumIfAskedTo) {
  auto config = scheduled("one_cycle");
  config.optimizer.momentum = 0.5;
  for (const bool cycles : {true, false}) {
    config.schedule.cycle_momentum = cycles;
    const auto optimizer = one_weight(config);
    train::make_schedule(config, *optimizer, 0, 5);
    const auto& options = static_cast<torch::optim::SGDOptions&>(optimizer->param_groups()[0].options());
    EXPECT_DOUBLE_EQ(options.momentum(), cycles ? 0.95 : 0.5);
  }
}

TEST(Options, AllAreRead) {
  const auto options = train::parse_options({"c.yaml", "--seed", "3", "--epochs=5", "--run-dir", "here", "--stop-after", "2"});
  EXPECT_EQ(options.config, "c.yaml");
  EXPECT_EQ(options.seed, 3);
  EXPECT_EQ(options.epochs, 5);
  EXPECT_EQ(options.run_dir, "here");
  EXPECT_EQ(options.stop_after, 2);
  EXPECT_EQ(options.help, "");
}

TEST(Options, HelpListsThemAllAndRequiresNoOther) {
  const auto help = train::parse_options({"--help"}).help;
  for (const auto* name :
       {"CONFIG", "--run-dir DIR", "--seed N", "--epochs N", "--stop-after N", "--resume PATH", "Exit code"}) {
    EXPECT_NE(help.find(name), std::string::npos) << name << " is not in\n" << help;
  }
}

TEST(Options, MistakesAreNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "no config given"},
      {{"a.yaml", "b.yaml"}, "unexpected argument 'b.yaml'; see --help"},
      {{"a.yaml", "--sed", "3"}, "unknown option '--sed'"},
      {{"a.yaml", "--seed"}, "--seed: 1 required N missing; see --help"},
      {{"a.yaml", "--seed", "-1"}, "--seed takes a whole number of at least 0, not '-1'"},
      {{"a.yaml", "--epochs", "2x"}, "--epochs takes a whole number of at least 1, not '2x'"},
      {{"a.yaml", "--resume", ""}, "--resume takes a name or a path, not ''; see --help"},
      {{"--resume", "r", "--seed", "1"}, "--resume continues in the run's folder"},
  };
  for (const auto& [arguments, message_start] : cases) {
    const auto message = message_of<UserError>([&, &arguments = arguments] { train::parse_options(arguments); });
    EXPECT_EQ(message.rfind(message_start, 0), 0u) << message;
  }
}

class EveryModel : public testing::TestWithParam<train::ModelConfig> {};

TEST_P(EveryModel, GiveOneScoreForEachClassAndAGradientToEveryParameter) {
  at::manual_seed(1);
  for (const int64_t side : {8, 28, 32}) {
    for (const int64_t channels : {1, 3}) {
      auto model = train::make_classifier(GetParam(), {channels, side, side}, 10);
      const auto scores = model->forward(at::randn({4, channels, side, side}));
      EXPECT_EQ(scores.sizes(), (std::vector<int64_t>{4, 10}));
      scores.square().sum().backward();
      for (const auto& item : model->named_parameters()) {
        EXPECT_TRUE(item.value().grad().defined()) << item.key();
      }
    }
  }
}

TEST_P(EveryModel, AreTheSameForTheSameSeed) {
  const auto weights = [] {
    at::manual_seed(3);
    std::vector<at::Tensor> flat;
    for (const auto& parameter : train::make_classifier(GetParam(), {1, 8, 8}, 10)->parameters()) {
      flat.push_back(parameter.detach().flatten());
    }
    return at::cat(flat);
  };
  const auto first = weights();
  EXPECT_TRUE(first.equal(weights()));
}

INSTANTIATE_TEST_SUITE_P(All, EveryModel,
                         testing::Values(train::ModelConfig{"mlp", {16, 12}, {}, 0.5},
                                         train::ModelConfig{"convnet", {4, 6, 8}, {}, 0},
                                         train::ModelConfig{"resnet", {4, 8}, {1, 2}, 0}),
                         [](const auto& test) { return test.param.type; });

TEST(Models, BatchNormOfAnMlpStandsBetweenProductAndReLU) {
  at::manual_seed(1);
  train::ModelConfig config{"mlp", {5, 6}, {}, 0};
  config.batch_norm = true;
  auto model = train::make_classifier(config, {1, 8, 8}, 10);
  std::string names;
  for (const auto& layer : *model->layers) names += layer.ptr()->name() + " ";
  const std::string nn = "torch::nn::";
  EXPECT_EQ(names, nn + "FlattenImpl " + nn + "LinearImpl " + nn + "BatchNorm1dImpl " + nn + "ReLUImpl " + nn + "LinearImpl " +
                       nn + "BatchNorm1dImpl " + nn + "ReLUImpl " + nn + "LinearImpl ");
  EXPECT_EQ(model->forward(at::randn({4, 1, 8, 8})).sizes(), (std::vector<int64_t>{4, 10}));
}

TEST(Models, TooManyStagesForTheImageAreAnError) {
  const auto message = message_of<UserError>([] {
    train::make_classifier({"convnet", {4, 4, 4, 4, 4}, {}, 0}, {1, 8, 8}, 10);
  });
  EXPECT_EQ(message, "key 'model.widths': 5 stages are too many for images of 8x8");
}

// The layers as torchvision's AlexNet has them, convolutions and pooling but made for 32x32 images: 16x16 behind the first
// convolution, 8x8, 4x4 and 2x2 behind the poolings.
TEST(Models, AlexNetHasTheLayersOfAlexNet) {
  at::manual_seed(1);
  auto model = train::make_classifier({"alexnet", {}, {}, 0.5}, {3, 32, 32}, 10);
  const std::vector<std::vector<int64_t>> weights = {{64, 3, 3, 3},    {192, 64, 3, 3},     {384, 192, 3, 3}, {256, 384, 3, 3},
                                                     {256, 256, 3, 3}, {4096, 256 * 2 * 2}, {4096, 4096},     {10, 4096}};
  std::vector<std::vector<int64_t>> found;
  int64_t parameters = 0;
  for (const auto& each : model->parameters()) {
    if (each.dim() > 1) found.push_back(each.sizes().vec());
    parameters += each.numel();
  }
  EXPECT_EQ(found, weights);
  // 1792 + 110784 + 663936 + 884992 + 590080 of the convolutions, 4198400 + 16781312 + 40970 of the linear layers.
  EXPECT_EQ(parameters, 23272266);
  EXPECT_EQ(model->layers->size(), 5 * 2 + 3 + 1 + 2 * 3 + 1);  // with ReLU, poolings, flattening and dropout
  EXPECT_EQ(model->layers->ptr(14)->as<torch::nn::Dropout>()->options.p(), 0.5);
  EXPECT_EQ(model->forward(at::randn({2, 3, 32, 32})).sizes(), (std::vector<int64_t>{2, 10}));
}

TEST(Models, AlexNetRejectsImagesThatAreTooSmall) {
  const train::ModelConfig config{"alexnet", {}, {}, 0};
  EXPECT_EQ(message_of<UserError>([&] {
              train::make_classifier(config, {1, 14, 32}, 10);
            }),
            "key 'model.type': nothing is left of images of 14x32 after alexnet has halved them four times; give "
            "'data.image_size: 32'");
  EXPECT_EQ(train::make_classifier(config, {1, 15, 31}, 10)->forward(at::zeros({1, 1, 15, 31})).size(1), 10);
}

TEST(Optimizer, EveryTypeStepsAtTheGivenRate) {
  for (const std::string type :
       {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "FusedSGD", "FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad",
        "FusedLARS", "FusedLion", "FusedScheduleFreeAdamW", "FusedMixedPrecisionLamb"}) {
    train::OptimizerConfig config;
    config.type = type;
    config.lr = 0.5;
    auto parameter = at::ones({3}).requires_grad_();
    const auto optimizer = train::make_optimizer(config, {parameter});
    parameter.mutable_grad() = at::ones({3});
    train::set_training(*optimizer, true);
    train::set_learning_rate(*optimizer, 0);
    optimizer->step();
    EXPECT_TRUE(parameter.equal(at::ones({3}))) << type;
    train::set_learning_rate(*optimizer, 0.25);
    optimizer->step();
    EXPECT_TRUE(parameter.lt(1).all().item<bool>()) << type;
  }
}

TEST(TorchAmp, AStepThatHalvedTheScaleIsReportedAsSkippedWithTheReason) {
  torch::nn::Linear net(2, 1);
  net->weight.mutable_grad() = at::tensor({1.0f, INFINITY}).view({1, 2});
  net->bias.mutable_grad() = at::ones({1});
  const auto skipped = train::result_of_step(*net, 0.5, 1024, 512);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(skipped.first_nonfinite, "weight");
  EXPECT_EQ(skipped.inf_count, 1);
  EXPECT_FALSE(skipped.nonfinite_loss);
  EXPECT_EQ(train::scale_event(1024, 512)->change, apex::amp::ScaleChange::overflow);
  EXPECT_EQ(train::scale_event(512, 1024)->change, apex::amp::ScaleChange::growth);
  EXPECT_FALSE(train::scale_event(512, 512));
  EXPECT_FALSE(train::result_of_step(*net, 0.5, 512, 1024).skipped);
}

// Before the first step the network's first weight is not a number.
struct SpoilingTeam : train::Team {
  Forward join(train::Network& net, const train::Config& config) override {
    const at::NoGradGuard no_grad;
    net->parameters().front().fill_(std::nan(""));
    return Team::join(net, config);
  }
};

TEST(Trainer, RejectsClimbingFromNonFiniteWeights) {
  const Scratch scratch;
  scratch.write("data/digits.csv", easy_digits());
  const auto config = train::parse_config("model: {type: mlp, widths: [8]}\ndata: {set: digits, dir: '" + (scratch / "data") +
                                              "'}\noptimizer: {type: SGD, lr: 0.1}\ndevice: cpu\non_divergence: climb\n"
                                              "amp: {opt_level: O2}\n",
                                          "c.yaml");
  const auto folder = train::RunFolder::create(scratch / "run", "c.yaml");
  std::ostringstream out;
  common::Progress progress(out, common::Terminal{});
  SpoilingTeam team;
  train::Observer nobody;
  const auto message = message_of<UserError>([&] {
    train::train(config, train::load_data(config.data), folder, /*resume=*/false, /*stop_after=*/0, team, nobody, progress);
  });
  EXPECT_EQ(message.rfind("key 'on_divergence': the run has no checkpoint to go back to: parameter '", 0), 0u) << message;
  EXPECT_FALSE(std::filesystem::exists(folder.levels()));
  EXPECT_FALSE(std::filesystem::exists(folder.checkpoint()));
}

}  // namespace
