// Training states of optimizers that keep masters, moments or steps in ways of their own, and what has no counterpart in
// Python.
#include <apex_cpp/amp.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <apex_cpp/optimizers.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/errors.h"

namespace apex::test {
namespace {

using optimizers::FusedAdam;
using optimizers::FusedAdamOptions;
using optimizers::MasterStorage;
using optimizers::MomentStorage;
using torch::nn::Linear;

class TrainingStates : public testing::Test {
 protected:
  TrainingStates() : path_(testing::TempDir() + "training_state" + std::to_string(getpid())) { at::manual_seed(3); }
  ~TrainingStates() override {
    amp::reset();
    std::filesystem::remove(path_);
  }

  std::string path_;
};

void step_with(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params, int steps = 3) {
  for (int step = 0; step < steps; ++step) {
    for (const auto& param : params) at::Tensor(param).mutable_grad() = at::ones_like(param) * (0.25 * (step + 1));
    optimizer.step();
  }
}

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// What `save_for_python` writes.
template <class Model, class Optimizer>
std::string state_bytes(const Model& model, const Optimizer& optimizer, const std::string& path) {
  const auto beside = path + ".bytes";
  amp::save_for_python(beside, model, optimizer);
  const auto bytes = contents(beside);
  std::filesystem::remove(beside);
  return bytes;
}

at::Tensor tensor_of(const std::string& path, const std::string& name) {
  for (const auto& [key, tensor] : amp::detail::read_safetensors(path).tensors) {
    if (key == name) return tensor;
  }
  return {};
}

// A bfloat16 model whose FusedAdam keeps the masters in some way.
struct KeptMasters {
  explicit KeptMasters(const FusedAdamOptions& options) : optimizer((model->to(at::kBFloat16), model->parameters()), options) {}
  Linear model{5, 3};
  FusedAdam optimizer;
};

TEST_F(TrainingStates, MastersThatAnOptimizerKeepsAreTheValuesInPython) {
  const auto with_remainders = FusedAdamOptions(0.01).master_storage(MasterStorage::remainder16);
  const auto with_own_masters = FusedAdamOptions(0.01).capturable(true).master_weights(true);
  for (const auto& options : {with_remainders, with_own_masters}) {
    KeptMasters run(options), other(options);
    step_with(run.optimizer, run.model->parameters());
    amp::save_for_python(path_, run.model, run.optimizer);
    const auto weight = tensor_of(path_, "model/weight");
    EXPECT_TRUE(weight.to(at::kBFloat16).equal(run.model->weight));
    EXPECT_FALSE(weight.equal(run.model->weight.to(at::kFloat))) << "the test has lost its point";
    EXPECT_TRUE(amp::load_from_python(path_, other.model, other.optimizer).empty());
    EXPECT_EQ(state_bytes(other.model, other.optimizer, path_), contents(path_));
    step_with(run.optimizer, run.model->parameters());
    step_with(other.optimizer, other.model->parameters());
    EXPECT_EQ(state_bytes(other.model, other.optimizer, path_), state_bytes(run.model, run.optimizer, path_));
  }
}

TEST_F(TrainingStates, MomentsOf8BitsAreFloat32InPython) {
  Linear model(64, 2), other(64, 2);
  const auto options = FusedAdamOptions(0.01).moment_storage(MomentStorage::int8);
  FusedAdam optimizer(model->parameters(), options), other_optimizer(other->parameters(), options);
  step_with(optimizer, model->parameters());
  amp::save_for_python(path_, model, optimizer);
  EXPECT_EQ(tensor_of(path_, "optimizer/state/0/exp_avg").scalar_type(), at::kFloat);
  amp::load_from_python(path_, other, other_optimizer);
  EXPECT_EQ(state_bytes(other, other_optimizer, path_), contents(path_));
}

TEST_F(TrainingStates, A16BitModelWithoutMastersGetsRoundedValues) {
  Linear model(4, 2), other(4, 2);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  step_with(optimizer, model->parameters());
  amp::save_for_python(path_, model, optimizer);
  torch::optim::SGD sgd(other->parameters(), torch::optim::SGDOptions(0.1));
  auto [net, opt] = amp::initialize(other, sgd, "O3", amp::InitializeOptions().verbosity(0));
  const auto notes = amp::load_from_python(path_, net, opt);
  EXPECT_EQ(notes, std::vector<std::string>{"2 FP32 master weights of the file are not used at this level."});
  EXPECT_TRUE(net->weight.equal(model->weight.to(at::kHalf)));
}

TEST_F(TrainingStates, Float64ModelsKeepTheirDtype) {
  Linear model(4, 2), other(4, 2);
  model->to(at::kDouble);
  other->to(at::kDouble);
  torch::optim::AdamW optimizer(model->parameters()), other_optimizer(other->parameters());
  step_with(optimizer, model->parameters());
  amp::save_for_python(path_, model, optimizer);
  EXPECT_EQ(tensor_of(path_, "model/weight").scalar_type(), at::kDouble);
  EXPECT_EQ(amp::load_from_python(path_, other, other_optimizer), std::vector<std::string>{}) << "nothing is lost";
  EXPECT_EQ(state_bytes(other, other_optimizer, path_), contents(path_));
}

// As from a float32 model in Python.
TEST_F(TrainingStates, Float64ModelsTakeFloat32Values) {
  Linear model(4, 2), other(4, 2);
  other->to(at::kDouble);
  torch::optim::AdamW optimizer(model->parameters()), other_optimizer(other->parameters());
  step_with(optimizer, model->parameters());
  amp::save_for_python(path_, model, optimizer);
  amp::load_from_python(path_, other, other_optimizer);
  EXPECT_TRUE(other->weight.equal(model->weight.to(at::kDouble)));
  EXPECT_EQ(other_optimizer.state().size(), 2u);
}

TEST_F(TrainingStates, StatesThatTheFileLacksAreDropped) {
  Linear model(4, 2), other(4, 2);
  torch::optim::AdamW optimizer(model->parameters()), other_optimizer(other->parameters());
  model->bias.set_requires_grad(false);
  step_with(optimizer, {model->weight});
  step_with(other_optimizer, other->parameters(), 5);
  amp::save_for_python(path_, model, optimizer);
  amp::load_from_python(path_, other, other_optimizer);
  EXPECT_EQ(other_optimizer.state().size(), 1u);
  EXPECT_EQ(state_bytes(other, other_optimizer, path_), contents(path_));
}

// Python's Adagrad makes the states of all parameters at once, and steps no parameter without one.
TEST_F(TrainingStates, AdagradsFileHasAllStates) {
  Linear model(4, 2);
  torch::optim::Adagrad adagrad(model->parameters(), torch::optim::AdagradOptions(0.1));
  amp::save_for_python(path_, model, adagrad);
  auto file = amp::detail::read_safetensors(path_);
  const auto is_sum = [](const auto& item) { return item.first == "optimizer/state/1/sum"; };
  file.tensors.erase(std::find_if(file.tensors.begin(), file.tensors.end(), is_sum));
  auto state = nlohmann::json::parse(file.metadata.at("training_state"));
  const std::string position = "1";
  state["optimizer"]["state"].erase(position);
  file.metadata["training_state"] = state.dump();
  amp::detail::write_safetensors(path_, file);
  expect_error([&] { amp::load_from_python(path_, model, adagrad); },
               {"the state of parameter 1, 'bias', is missing, which torch.optim.Adagrad has from the start"});
}

TEST_F(TrainingStates, FrozenParametersGetNoMasters) {
  Linear model(4, 2), other(4, 2);
  for (auto* one : {&model, &other}) (*one)->bias.set_requires_grad(false);
  torch::optim::AdamW optimizer(model->parameters()), adamw(other->parameters());
  step_with(optimizer, {model->weight});
  amp::save_for_python(path_, model, optimizer);
  auto [net, opt] = amp::initialize(other, adamw, "O2", amp::InitializeOptions().verbosity(0).loss_scale(128.0));
  EXPECT_TRUE(amp::load_from_python(path_, net, opt).empty());
  for (const auto& master : amp::master_params(opt)) EXPECT_EQ(master.is_same(net->bias), master.sizes() == net->bias.sizes());
  amp::save_for_python(path_, net, opt);
  EXPECT_TRUE(tensor_of(path_, "model/weight").equal(model->weight));
  EXPECT_TRUE(tensor_of(path_, "model/bias").equal(model->bias.to(at::kHalf).to(at::kFloat)));
}

// A part of the model, such as an encoder, that another call trains.
TEST_F(TrainingStates, HaveTheMastersOfAPartOfAnotherCall) {
  Linear encoder(4, 4), head(4, 2);
  torch::optim::SGD of_encoder(encoder->parameters(), 1.0 / 1024), of_head(head->parameters(), 0.1);
  const auto options = amp::InitializeOptions().verbosity(0);
  auto [part, part_opt] = amp::initialize(encoder, of_encoder, "O5", options);
  auto [net, opt] = amp::initialize(head, of_head, "O5", options);
  { amp::scale_loss(part->forward(at::ones({3, 4})).sum(), part_opt).backward(); }
  part_opt.step();
  torch::nn::Sequential model(encoder, head);
  amp::save_for_python(path_, model, opt);
  const at::Tensor master = amp::master_params(part_opt)[0];
  ASSERT_FALSE(master.equal(encoder->weight.to(at::kFloat)));
  EXPECT_TRUE(tensor_of(path_, "model/0.weight").equal(master));
}

TEST_F(TrainingStates, LoadInInferenceMode) {
  Linear model(4, 2), other(4, 2);
  torch::optim::AdamW optimizer(model->parameters()), other_optimizer(other->parameters());
  step_with(optimizer, model->parameters());
  amp::save_for_python(path_, model, optimizer);
  {
    const c10::InferenceMode on;
    amp::load_from_python(path_, other, other_optimizer);
  }
  step_with(optimizer, model->parameters());
  step_with(other_optimizer, other->parameters());
  EXPECT_EQ(state_bytes(other, other_optimizer, path_), state_bytes(model, optimizer, path_));
}

TEST_F(TrainingStates, AFusedGroupHasOneCountOfSteps) {
  Linear model(4, 2), other(4, 2);
  torch::optim::AdamW optimizer(model->parameters());
  step_with(optimizer, {model->weight}, 1);
  step_with(optimizer, model->parameters(), 2);
  amp::save_for_python(path_, model, optimizer);
  FusedAdam fused(other->parameters(), FusedAdamOptions(0.01));
  expect_error([&] { amp::load_from_python(path_, other, fused); },
               {"parameter 1, 'bias', has taken 2 steps and parameter 0, 'weight', 3", "a group for each count"});
  const std::vector<torch::optim::OptimizerParamGroup> groups = {torch::optim::OptimizerParamGroup({other->weight}),
                                                                 torch::optim::OptimizerParamGroup({other->bias})};
  FusedAdam in_groups(groups, FusedAdamOptions(0.01));
  expect_error([&] { amp::load_from_python(path_, other, in_groups); },
               {"its optimizer has 1 parameter groups, this one has 2"});
}

TEST_F(TrainingStates, OptionsThatPythonsClassLacksAreRefused) {
  Linear model(4, 2);
  const auto refused = [&](auto&& optimizer, const std::string& text) {
    expect_error([&] { amp::save_for_python(path_, model, optimizer); }, {"parameter group 0 of ", text});
    EXPECT_FALSE(std::filesystem::exists(path_));
  };
  refused(FusedAdam(model->parameters(), FusedAdamOptions(0.01).bias_correction(false)), "bias_correction false");
  refused(optimizers::FusedSGD(model->parameters(), optimizers::FusedSGDOptions(0.1).wd_after_momentum(true)),
          "wd_after_momentum true, which torch.optim.SGD does not compute. Set it false.");
  refused(optimizers::FusedAdagrad(model->parameters(), optimizers::FusedAdagradOptions(0.1).adagrad_w_mode(true)),
          "adagrad_w_mode true");
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{model->weight}, std::make_unique<FusedAdamOptions>(0.01));
  groups.emplace_back(std::vector<at::Tensor>{model->bias},
                      std::make_unique<FusedAdamOptions>(FusedAdamOptions(0.01).adam_w_mode(false)));
  FusedAdam mixed(groups, FusedAdamOptions(0.01));
  expect_error([&] { amp::save_for_python(path_, model, mixed); }, {"parameter groups 0 and 1 differ in adam_w_mode"});
}

TEST_F(TrainingStates, OptionsOfPythonThatAFusedClassLacksAreRefused) {
  Linear model(4, 2);
  torch::optim::Adagrad adagrad(model->parameters(), torch::optim::AdagradOptions(0.1).lr_decay(0.5));
  amp::save_for_python(path_, model, adagrad);
  optimizers::FusedAdagrad fused_adagrad(model->parameters());
  expect_error([&] { amp::load_from_python(path_, model, fused_adagrad); },
               {"has lr_decay 0.5, which apex::optimizers::FusedAdagrad does not compute. Set it 0"});
  torch::optim::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(0.1).amsgrad(true));
  amp::save_for_python(path_, model, adamw);
  FusedAdam fused_adam(model->parameters());
  expect_error([&] { amp::load_from_python(path_, model, fused_adam); },
               {"has amsgrad True, which apex::optimizers::FusedAdam"});
}

/// A class of the program's, which saves nothing.
struct OwnSgd : torch::optim::SGD {
  using SGD::SGD;
  void save(torch::serialize::OutputArchive&) const override {}
};

TEST_F(TrainingStates, WhatHasNoCounterpartInPythonIsRefused) {
  Linear model(4, 2), another(4, 2);
  torch::optim::LBFGS lbfgs(model->parameters());
  expect_error(
      [&] { amp::save_for_python(path_, model, lbfgs); },
      {"the optimizer's class is torch::optim::LBFGS, for which no file for Python", "torch::optim::SGD, torch::optim::Adam"});
  OwnSgd own(model->parameters(), 0.1);
  expect_error([&] { amp::save_for_python(path_, model, own); }, {"OwnSgd, for which no file for Python"});
  torch::optim::SGD of_another(another->parameters(), 0.1);
  expect_error([&] { amp::save_for_python(path_, model, of_another); }, {"parameter 0 of the optimizer is not in the model"});
  torch::optim::SGD sgd(model->parameters(), std::numeric_limits<double>::infinity());
  expect_error<c10::ValueError>([&] { amp::save_for_python(path_, model, sgd); },
                                {"lr is inf. Set it to a finite number first."});
  expect_error([&] { amp::save_for_python(path_, std::tie(model, another), sgd); }, {"was given 2 models and 1 optimizers"});
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TrainingStates, OneLossScaleAtATime) {
  Linear model(4, 2);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, "O2", amp::InitializeOptions().verbosity(0).num_losses(2));
  expect_error([&, &net = net, &opt = opt] { amp::save_for_python(path_, net, opt); },
               {"amp has 2 loss scalers, and a training state holds one"});
  amp::GradScaler scaler(c10::kCPU, 64.0);
  amp::save_for_python(path_, net, opt, scaler);
  expect_error([&, &net = net, &opt = opt] { amp::load_from_python(path_, net, opt); }, {"amp has 2 loss scalers here"});
  auto scaled_loss = amp::scale_loss(net->forward(at::ones({1, 4})).sum(), opt);
  expect_error([&, &net = net, &opt = opt] { amp::save_for_python(path_, net, opt, scaler); },
               {"amp::save_for_python was called inside a scale_loss block"});
  expect_error([&, &net = net, &opt = opt] { amp::load_from_python(path_, net, opt, scaler); },
               {"amp::load_from_python was called inside a scale_loss block"});
  scaled_loss.backward();
}

TEST_F(TrainingStates, ADisabledScalerWritesAndReadsNothing) {
  Linear model(4, 2);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  amp::GradScaler disabled(c10::kCPU, 64.0, 2.0, 0.5, 2000, /*enabled=*/false), enabled(c10::kCPU, 64.0);
  amp::save_for_python(path_, model, sgd, disabled);
  EXPECT_TRUE(amp::load_from_python(path_, model, sgd, disabled).empty());
  expect_error([&] { amp::load_from_python(path_, model, sgd, enabled); }, {"it has no loss scale for the amp::GradScaler"});
  amp::save_for_python(path_, model, sgd, enabled);
  EXPECT_TRUE(amp::load_from_python(path_, model, sgd, disabled).empty());
}

}  // namespace
}  // namespace apex::test
