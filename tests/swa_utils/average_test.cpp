// ExponentialMovingAverage at each level: what it averages, evaluation with averages, and resumed runs.
#include <apex_cpp/optimizers.h>
#include <apex_cpp/swa_utils.h>

#include <ATen/ops/_foreach_lerp.h>

#include <cstdio>
#include <tuple>

#include "tests/amp/every_level.h"
#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

using swa_utils::ExponentialMovingAverage;
using swa_utils::ExponentialMovingAverageOptions;
using torch::Tensor;

template <class Net, class Opt>
void train_step(Net& net, Opt& opt, float factor = 1) {
  opt.zero_grad();
  { amp::scale_loss((net->forward(features()).to(torch::kFloat) * factor).square().mean(), opt).backward(); }
  opt.step();
}

std::string bytes_of(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) bytes += test::bytes_of(tensor);
  return bytes;
}

class Average : public AtEveryLevel {};
INSTANTIATE_TEST_SUITE_P(All, Average, kEveryLevel);

// Against LibTorch's own function on copies of the masters.
TEST_P(Average, HasTheBitsOfForeachLerp) {
  Mlp model;
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [net, opt] = amp::initialize(model, sgd, level(), quiet());
  ExponentialMovingAverage ema(opt, 0.9);
  std::vector<Tensor> reference;
  for (int step = 0; step < 8; ++step) {
    train_step(net, opt);
    ema.update();
    std::vector<Tensor> weights;
    for (const Tensor& weight : amp::master_params(opt))
      weights.push_back(weight.detach().to(torch::kFloat, false, /*copy=*/true));
    if (step == 0) reference = weights;
    if (step > 0) at::_foreach_lerp_(reference, weights, 1 - 0.9);
    ASSERT_EQ(bytes_of(ema.averages()), bytes_of(reference)) << step;
  }
  EXPECT_EQ(ema.n_averaged(), 8);
  EXPECT_NE(bytes_of(ema.averages()), bytes_of(amp::master_params(opt)));
}

struct WithBinsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return fc(x); }
  Tensor bins = register_parameter("bins", torch::arange(4), /*requires_grad=*/false);
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 3));
};
TORCH_MODULE(WithBins);

TEST_P(Average, IntegersKeepTheirValues) {
  WithBins model;
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  auto [net, opt] = amp::initialize(model, sgd, level(), quiet());
  ExponentialMovingAverage ema(opt, 0.9);
  for (int step = 0; step < 3; ++step) {
    train_step(net, opt);
    ema.update();
  }
  EXPECT_EQ(ema.n_averaged(), 3);
  EXPECT_TRUE(torch::equal(ema.averages()[0], torch::arange(4)));
  const auto averaged = ema.average_parameters();
  EXPECT_TRUE(torch::equal(net->bins, torch::arange(4)));
}

TEST_P(Average, StaysOnASkippedStep) {
  Mlp model;
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  auto [net, opt] = amp::initialize(model, sgd, level(), quiet().loss_scale("dynamic"));
  ExponentialMovingAverage ema(opt, 0.9);
  for (int step = 0; step < 2; ++step) {
    train_step(net, opt);
    ema.update();
  }
  const auto before = bytes_of(ema.averages());
  train_step(net, opt, kInf);
  ASSERT_TRUE(amp::step_result(opt).skipped);
  ema.update();
  EXPECT_EQ(bytes_of(ema.averages()), before);
  EXPECT_EQ(ema.n_averaged(), 2);
}

/// Trains six steps, after the third of which `between` runs, and returns all bits of the run.
template <class Opt, class Options, class Between>
std::string trained(const std::string& level, const Options& options, const Between& between) {
  amp::reset();
  torch::manual_seed(2);
  Mlp model;
  Opt original(model->parameters(), options);
  auto [net, opt] = amp::initialize(model, original, level, quiet().loss_scale(8.0));
  ExponentialMovingAverage ema(opt, 0.5);
  for (int step = 0; step < 6; ++step) {
    train_step(net, opt);
    ema.update();
    if (step == 2) between(net, opt, ema);
  }
  return bytes_of(net->parameters()) + bytes_of(amp::master_params(opt)) + test::bytes_of(opt) + bytes_of(ema.averages());
}

template <class Opt, class Options>
void expect_no_trace(const std::string& level, const Options& options) {
  const auto nothing = [](auto&, auto&, auto&) {};
  const auto evaluate = [](auto& net, auto& opt, auto& ema) {
    const torch::NoGradGuard no_grad;
    const auto weights = bytes_of(net->parameters()), outputs = test::bytes_of(net->forward(features()));
    {
      const auto averaged = ema.average_parameters();
      for (size_t i = 0; i < ema.averages().size(); ++i) {
        EXPECT_TRUE(net->parameters()[i].equal(ema.averages()[i].to(net->parameters()[i].scalar_type())));
      }
      EXPECT_NE(test::bytes_of(net->forward(features())), outputs);
    }
    EXPECT_EQ(bytes_of(net->parameters()), weights);
    EXPECT_EQ(test::bytes_of(net->forward(features())), outputs);
    amp::master_params(opt);
  };
  const auto save_too = [](auto& net, auto& opt, auto& ema) {
    const auto averaged = ema.average_parameters();
    amp::master_params(opt);  // sees the averages as edits
    amp::save_safetensors(::testing::TempDir() + "averages.safetensors", net, amp::SaveSafetensorsOptions().masters(true));
  };
  const auto plain = trained<Opt>(level, options, nothing);
  EXPECT_EQ(trained<Opt>(level, options, evaluate), plain);
  EXPECT_EQ(trained<Opt>(level, options, save_too), plain);
}

TEST_P(Average, LeavesNoTraceOfAnEvaluation) {
  expect_no_trace<torch::optim::Adam>(level(), torch::optim::AdamOptions(1e-2).eps(1e-3));  // float16 holds it
  expect_no_trace<optimizers::FusedAdam>(level(), optimizers::FusedAdamOptions(1e-2));
  expect_no_trace<optimizers::FusedSGD>(level(),
                                        optimizers::FusedSGDOptions(0.1).momentum(0.9).materialize_master_grads(false));
}

TEST_P(Average, LeavesWhatTheProgramHasWrittenIntoMasters) {
  Mlp model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, level(), quiet().loss_scale(8.0));
  ExponentialMovingAverage ema(opt, 0.9);
  train_step(net, opt);
  ema.update();
  {
    const torch::NoGradGuard no_grad;
    for (const Tensor& each : amp::master_params(opt)) Tensor(each).clamp_(-0.1, 0.1);
  }
  const auto written = bytes_of(amp::master_params(opt));
  { const auto averaged = ema.average_parameters(); }
  train_step(net, opt, 0);
  EXPECT_EQ(bytes_of(amp::master_params(opt)), written);
}

using optimizers::FusedAdamOptions;
using optimizers::MasterStorage;

TEST(AverageOfRemainders, HasTheBitsOfThatOfFloat32Masters) {
  const auto averages = [](MasterStorage storage) {
    std::string bytes;
    trained<optimizers::FusedAdam>("O5", FusedAdamOptions(1e-2).master_storage(storage),
                                   [&](auto&, auto&, auto& ema) { bytes = bytes_of(ema.averages()); });
    return bytes;
  };
  EXPECT_EQ(averages(MasterStorage::remainder16), averages(MasterStorage::float32));
  EXPECT_NE(averages(MasterStorage::remainder8), averages(MasterStorage::float32));
}

TEST(AverageOfRemainders, LeavesNoTraceOfAnEvaluation) {
  expect_no_trace<optimizers::FusedAdam>("O5", FusedAdamOptions(1e-2).master_storage(MasterStorage::remainder16));
}

TEST_P(Average, OfAResumedRunHasTheSameBits) {
  const auto path = ::testing::TempDir() + "average_" + level() + ".ckpt";
  const auto run = [&](int from, int to, bool load) {
    amp::reset();
    torch::manual_seed(load ? 7 : 2);
    Mlp model;
    torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-3));  // float16 holds it
    auto [net, opt] = amp::initialize(model, adam, level(), quiet());
    ExponentialMovingAverage ema(opt, ExponentialMovingAverageOptions(0.9).use_num_updates(true));
    if (load) amp::load_checkpoint(path, std::tie(net, ema), opt);
    for (int step = from; step < to; ++step) {
      train_step(net, opt);
      ema.update();
    }
    for (const Tensor& average : ema.averages()) EXPECT_TRUE(average.isfinite().all().item<bool>()) << level();
    amp::save_checkpoint(path, std::tie(net, ema), opt);
    return bytes_of(ema.averages()) + bytes_of(net->parameters());
  };
  const auto through = run(0, 6, false);
  run(0, 3, false);
  EXPECT_EQ(run(3, 6, true), through);
  std::remove(path.c_str());
}

class AverageOnCuda : public ::testing::Test {
  void SetUp() override { APEX_CPP_NEEDS_GPUS(1); }
};

TEST_F(AverageOnCuda, EvaluatesAndRestores) {
  amp::reset();
  Mlp model;
  model->to(torch::kCUDA);
  optimizers::FusedAdam adam(model->parameters(), optimizers::FusedAdamOptions(1e-2));
  auto [net, opt] = amp::initialize(model, adam, "O2", quiet());
  ExponentialMovingAverage ema(opt, 0.5);
  std::vector<Tensor> reference;
  for (int step = 0; step < 4; ++step) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(features().cuda()).to(torch::kFloat).square().mean(), opt).backward(); }
    opt.step();
    ema.update();
    std::vector<Tensor> weights;
    for (const Tensor& weight : amp::master_params(opt)) weights.push_back(weight.detach().clone());
    if (step == 0) reference = weights;
    if (step > 0) at::_foreach_lerp_(reference, weights, 0.5);
  }
  for (size_t i = 0; i < reference.size(); ++i) EXPECT_TRUE(reference[i].equal(ema.averages()[i]));
  EXPECT_TRUE(ema.averages()[0].is_cuda());
  const auto masters = amp::master_params(opt)[0].detach().clone(), weights = net->parameters()[0].detach().clone();
  {
    const auto averaged = ema.average_parameters();
    EXPECT_FALSE(net->parameters()[0].equal(weights));
  }
  EXPECT_TRUE(net->parameters()[0].equal(weights));
  EXPECT_TRUE(amp::master_params(opt)[0].equal(masters));
  amp::reset();
}

}  // namespace
}  // namespace apex::test
