// Layers that are frozen in one run and trained in another: a saved optimizer is loaded into the matching parameters.
#include <apex_cpp/optimizers.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/amp/optimizers.h"
#include "tests/amp/saved.h"

namespace apex::test {
namespace {

using torch::Tensor;

struct TwinsImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return b(torch::tanh(a(x))); }
  void train_only(const torch::nn::Linear& layer) {
    for (const auto& each : {a, b}) {
      for (Tensor& param : each->parameters()) param.set_requires_grad(each.ptr() == layer.ptr());
    }
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(6, 6)), b = register_module("b", torch::nn::Linear(6, 6));
};
TORCH_MODULE(Twins);

class FrozenParams : public AmpTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Levels, FrozenParams, ::testing::Values("O0", "O2", "O5", "O6"),
                         [](const auto& test) { return test.param; });

TEST_P(FrozenParams, MastersAreLoadedIntoTheMatchingParameters) {
  std::string model_file, optimizer_file;
  {
    Twins model;
    model->train_only(model->a);
    optimizers::FusedAdam optimizer(model->parameters(), 0.01);
    auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
    train_step(net, opt, features());
    model_file = saved(net), optimizer_file = saved(opt);
  }
  amp::reset();
  Twins model;
  model->train_only(model->b);
  optimizers::FusedAdam optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  restore(net, model_file);
  restore(opt, optimizer_file);
  const Tensor before = amp::master_params(opt)[2].detach().clone();
  train_step(net, opt, features());
  const Tensor moved = (amp::master_params(opt)[2] - before).abs().max();
  EXPECT_GT(moved.item<float>(), 0);
  // A dozen roundings of 2^-24, and 2^-26 of the difference, of weights below 1/2.
  EXPECT_LE(moved.item<float>(), 0.01 * (1 + 0x1p-17)) << "Adam moves by the learning rate at most, in its first step";
}

// The file has masters only for `a`, since no pass has run with `b`.
TEST_P(FrozenParams, AFileSavedBetweenUnfreezingAndTheNextPassLoads) {
  Twins model;
  model->train_only(model->a);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  train_step(net, opt, features());
  for (Tensor& param : model->parameters()) param.set_requires_grad(true);
  const auto model_file = saved(net), optimizer_file = saved(opt);
  train_step(net, opt, features());
  const auto after = bytes_of(opt);
  restore(net, model_file);
  restore(opt, optimizer_file);
  train_step(net, opt, features());
  EXPECT_EQ(bytes_of(opt), after);
}

class FrozenAtTheLoad : public FrozenParams {
 protected:
  void SetUp() override {
    FrozenParams::SetUp();
    path_ = (std::filesystem::temp_directory_path() / ("apex_cpp_frozen_" + std::to_string(::getpid()))).string();
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    FrozenParams::TearDown();
  }
  /// Trains on with all layers, after `load(net, opt)` if given, and returns the result.
  template <class Load>
  std::string resumed(const Load& load) {
    amp::reset();
    Twins model;
    model->train_only(model->b);
    optimizers::FusedAdam optimizer(model->parameters(), 0.01);
    auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
    load(net, opt);
    return thawed(model, net, opt);
  }
  template <class Net, class Opt>
  static std::string thawed(Twins& model, Net& net, Opt& opt) {
    train_step(net, opt, features());
    for (Tensor& param : model->parameters()) param.set_requires_grad(true);
    train_step(net, opt, features());
    return bytes_of(*model) + bytes_of(opt);
  }
  std::string path_;
};
INSTANTIATE_TEST_SUITE_P(Levels, FrozenAtTheLoad, ::testing::Values("O0", "O2", "O5", "O6"),
                         [](const auto& test) { return test.param; });

// The layer was trained before it was frozen. Later training continues from its master, not from its 16-bit weight.
TEST_P(FrozenAtTheLoad, AFrozenLayersMasterIsLoaded) {
  Twins model;
  optimizers::FusedAdam optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  train_step(net, opt, features());
  model->train_only(model->b);
  const auto model_file = saved(net), optimizer_file = saved(opt);
  amp::save_checkpoint(path_, net, opt);
  const auto expected = thawed(model, net, opt);
  EXPECT_EQ(resumed([&](auto& to, auto& stepped) { restore(to, model_file), restore(stepped, optimizer_file); }), expected);
  EXPECT_EQ(resumed([&](auto& to, auto& stepped) {
              EXPECT_EQ(amp::load_checkpoint(path_, to, stepped).notes, std::vector<std::string>());
            }),
            expected);
}

// Graphs recorded through the layer before the step stay valid.
TEST_P(FrozenAtTheLoad, StepsDoNotWriteToAFrozenLayer) {
  Twins model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  train_step(net, opt, features());
  amp::save_checkpoint(path_, net, opt);
  amp::reset();
  Twins resumed;
  resumed->train_only(resumed->b);
  torch::optim::SGD of_resumed(resumed->parameters(), 0.01);
  auto [to, stepped] = amp::initialize(resumed, of_resumed, GetParam(), quiet().loss_scale(8.0));
  amp::load_checkpoint(path_, to, stepped);
  train_step(to, stepped, features());
  const auto version = resumed->a->weight._version();
  for (int i = 0; i < 2; ++i) train_step(to, stepped, features());
  EXPECT_EQ(resumed->a->weight._version(), version);
}

// torch::optim::SGD writes the master through data(), which leaves its version as it was.
TEST_P(FrozenParams, ALayerThatIsFrozenBetweenItsPassAndTheStepIsStepped) {
  Twins model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  for (int step = 0; step < 3; ++step) {
    for (Tensor& param : model->parameters()) param.set_requires_grad(true);
    const Tensor before = amp::master_params(opt)[0].clone();
    train_step(net, opt, features(), /*step=*/false);
    model->train_only(model->b);
    opt.step();
    const Tensor master = amp::master_params(opt)[0];
    EXPECT_FALSE(master.equal(before)) << step;
    EXPECT_TRUE(model->a->weight.equal(master.to(model->a->weight.scalar_type()))) << step;
  }
}

TEST_P(FrozenParams, AGradientFromBeforeTheLayerWasFrozenIsNotStepped) {
  Twins model;
  model->forward(features()).square().mean().backward();
  model->train_only(model->b);
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  const auto frozen = bytes_of(*model->a);
  for (int step = 0; step < 3; ++step) train_step(net, opt, features());
  EXPECT_EQ(bytes_of(*model->a), frozen);
}

// The file was saved before `b` was trained, so the weights that the program writes are used.
TEST_P(FrozenParams, AWrittenWeightWithoutAMasterInTheFileIsKept) {
  Twins model;
  model->train_only(model->a);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  train_step(net, opt, features());
  const auto optimizer_file = saved(opt);
  for (Tensor& param : model->parameters()) param.set_requires_grad(true);
  train_step(net, opt, features());
  model->b->weight.detach().fill_(0.5);
  restore(opt, optimizer_file);
  train_step(net, opt, features());
  // Outputs are below 6 * 0.5 + 0.5, the gradient below 4 * 2 * 3.5 / 24 = 1.2; the step is 0.01 of it, and BF16 rounds by
  // 2^-9.
  EXPECT_LT((model->b->weight.detach() - 0.5).abs().max().item<float>(), 0.012 + 0x1p-9);
}

// exp_avg_sq is often too small for 16 bits. Rounded to 0 it would make the first step as large as lr / eps.
TEST_P(FrozenParams, ExistingMomentsStayFloat32) {
  Twins model;
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  model->forward(features()).square().mean().backward();
  for (Tensor& param : model->parameters()) param.mutable_grad() *= 1e-6;
  optimizer.step();
  const auto squares_of = [](torch::optim::Optimizer& of, const Tensor& param) {
    return static_cast<torch::optim::AdamParamState&>(*of.state().at(param.unsafeGetTensorImpl())).exp_avg_sq();
  };
  const Tensor before = squares_of(optimizer, model->a->weight);
  model->train_only(model->b);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  train_step(net, opt, features());
  const auto optimizer_file = saved(opt);
  restore(opt, optimizer_file);
  for (Tensor& param : model->parameters()) param.set_requires_grad(true);
  opt.zero_grad();
  { amp::scale_loss(model->b(features()).square().mean(), opt).backward(); }
  EXPECT_TRUE(squares_of(opt, amp::master_params(opt)[0]).equal(before));
}

// As in Apex, where the count is the group's. At a level with masters the unfrozen parameters are replaced by these.
TEST_P(FrozenParams, AFrozenGroupsStepsCount) {
  Twins model;
  model->train_only(model->b);
  std::vector<torch::optim::OptimizerParamGroup> groups{{model->a->parameters()}, {model->b->parameters()}};
  optimizers::FusedAdam optimizer(groups, optimizers::FusedAdamOptions(0.01));
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet());
  for (int i = 0; i < 3; ++i) train_step(net, opt, features());
  for (Tensor& param : model->parameters()) param.set_requires_grad(true);
  for (int i = 0; i < 2; ++i) train_step(net, opt, features());
  EXPECT_EQ(opt.steps_taken(0), 5);
  EXPECT_EQ(opt.steps_taken(1), 5);
}

}  // namespace
}  // namespace apex::test
