// Muon against Python's torch.optim.Muon, which muon.py runs on this machine: the same bits, also of masters.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>

#include <cstdio>
#include <limits>
#include <memory>

#include "tests/optimizers/support.h"

namespace test {
namespace {

namespace amp = apex::amp;
using namespace apex::optimizers;
using apex::test::expect_error;

constexpr int kMuonSteps = 5;

struct MuonCase {
  int64_t rows, columns;
  MuonOptions options;
};

// muon.py has the same cases and values.
const std::vector<MuonCase>& muon_cases() {
  static const std::vector<MuonCase> all = {
      {24, 40, {}},
      {40, 24, MuonOptions(0.02)},
      {128, 96, MuonOptions(0.02).nesterov(false).weight_decay(0)},
      {7, 5,
       MuonOptions(0.05).momentum(0.8).adjust_lr_fn("match_rms_adamw").ns_steps(3).ns_coefficients({2, -1.5, 0.5}).eps(100)}};
  return all;
}

at::Tensor muon_values(const MuonCase& of, int64_t seed) {
  const at::Tensor i = at::arange(of.rows * of.columns);
  return ((i * i % 61 + i * 37 + seed * 101) % 255 - 127).to(at::kFloat).div(64).view({of.rows, of.columns}).clone();
}

// The gradient of its output is the input.
struct MuonNetImpl : torch::nn::Module {
  explicit MuonNetImpl(const at::Tensor& initial) : weight(register_parameter("weight", initial.clone())) {}
  at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(); }
  at::Tensor weight;
};
TORCH_MODULE(MuonNet);

using MuonTensors = std::vector<at::Tensor>;  // the parameter or its master, and its momentum_buffer

MuonTensors tensors_of(torch::optim::Optimizer& optimizer) {
  const at::Tensor& param = optimizer.param_groups()[0].params()[0];
  auto& state = static_cast<MuonParamState&>(*optimizer.state().at(param.unsafeGetTensorImpl()));
  return copies_of({param, state.momentum_buffer});
}

// What muon.py writes; empty if LibTorch is not that of a Python package.
std::vector<MuonTensors> steps_of_python() {
  std::vector<MuonTensors> states;
#ifdef PYTHON_OF_TORCH
  const std::string command = PYTHON_OF_TORCH " -W ignore -B " MUON_PY " " + std::to_string(at::get_num_threads());
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> output(popen(command.c_str(), "r"), pclose);
  for (const MuonCase& of : muon_cases()) {
    MuonTensors& state = states.emplace_back();
    for (int i = 0; i < 2; ++i) {
      const at::Tensor& tensor = state.emplace_back(at::empty({of.rows, of.columns}));
      EXPECT_EQ(std::fread(tensor.mutable_data_ptr(), 1, tensor.nbytes(), output.get()), tensor.nbytes());
    }
  }
#endif
  return states;
}

MuonTensors plain_steps(const MuonCase& of, bool with_scaler) {
  amp::reset();
  const at::Tensor param = muon_values(of, 0).requires_grad_();
  Muon optimizer({param}, of.options);
  amp::GradScaler scaler(c10::kCPU, 128.0, 2.0, 0.5, /*growth_interval=*/2000, /*enabled=*/with_scaler);
  for (int step = 0; step < kMuonSteps; ++step) {
    optimizer.zero_grad();
    scaler.scale((param * muon_values(of, 1 + step)).sum()).backward();
    scaler.step(optimizer);
    scaler.update();
  }
  return tensors_of(optimizer);
}

// Half of the steps, then a new program that goes on from the saved optimizer.
MuonTensors steps_with_amp(const MuonCase& of, const char* level, bool materialize) {
  std::string halfway;
  at::Tensor weight = muon_values(of, 0);
  for (const auto& [begin, end] : {std::pair(0, kMuonSteps / 2), std::pair(kMuonSteps / 2, kMuonSteps)}) {
    amp::reset();
    MuonNet net(weight);
    Muon optimizer(net->parameters(), MuonOptions(of.options).materialize_master_grads(materialize));
    // As Python's, which computes in bfloat16 on every CPU.
    const auto settings = amp::InitializeOptions().verbosity(0).loss_scale(128.0).cpu_16bit("native");
    auto [model, opt] = amp::initialize(net, optimizer, level, settings);
    if (begin > 0) load(opt, halfway);
    for (int step = begin; step < end; ++step) {
      opt.zero_grad();
      amp::scale_loss(model->forward(muon_values(of, 1 + step)), opt).backward();
      opt.step();
    }
    const at::Tensor& stepped = opt.param_groups()[0].params()[0];
    EXPECT_TRUE(same_bytes(net->weight, stepped.to(net->weight.scalar_type()))) << "the model is not its master's copy";
    if (end == kMuonSteps) return tensors_of(opt);
    halfway = saved(opt);
    weight = net->weight.detach().to(at::kFloat);
  }
  return {};
}

TEST(MuonSteps, HaveTheBitsOfPythons) {
  const auto expected = steps_of_python();
  if (expected.empty()) GTEST_SKIP() << "LibTorch is not that of a Python package";
  ASSERT_EQ(expected.size(), muon_cases().size());
  for (size_t i = 0; i < muon_cases().size(); ++i) {
    EXPECT_TRUE(same_bytes(plain_steps(muon_cases()[i], false), expected[i])) << "case " << i;
    EXPECT_TRUE(same_bytes(plain_steps(muon_cases()[i], true), expected[i])) << "case " << i << " with GradScaler";
    for (const char* level : {"O0", "O1", "O2", "O4", "O5", "O6"}) {
      for (const bool materialize : {true, false}) {
        EXPECT_TRUE(same_bytes(steps_with_amp(muon_cases()[i], level, materialize), expected[i]))
            << "case " << i << " at " << level << ", materialize_master_grads " << materialize;
      }
    }
  }
  amp::reset();
}

// Two layers with biases, each in an optimizer of its own: what Muon is for.
TEST(MuonBesideAdam, TrainsAtO2AndSkipsAfterAnOverflow) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(6, 12), torch::nn::ReLU(), torch::nn::Linear(12, 3));
  std::vector<at::Tensor> matrices, others;
  for (const at::Tensor& param : net->parameters()) (param.dim() == 2 ? matrices : others).push_back(param);
  Muon muon(matrices, MuonOptions(0.02));
  FusedAdam adam(others, FusedAdamOptions(0.02));
  auto [model, opts] = amp::initialize(net, std::tie(muon, adam), "O2", amp::InitializeOptions().verbosity(0));
  torch::optim::Optimizer &muon_opt = std::get<0>(opts), &adam_opt = std::get<1>(opts);
  const auto step = [&, &model = model](double factor) {
    muon_opt.zero_grad();
    adam_opt.zero_grad();
    const at::Tensor loss = model->forward(values({8, 6}, 2)).square().mean() * factor;
    amp::scale_loss(loss, {muon_opt, adam_opt}).backward();
    muon_opt.step();
    adam_opt.step();
    return loss.item<double>();
  };
  const auto everything = [&] {
    MuonTensors all = copies_of(net->parameters());
    for (const at::Tensor& master : muon_opt.param_groups()[0].params()) {
      const auto state = muon_opt.state().find(master.unsafeGetTensorImpl());
      for (const at::Tensor& tensor : {master, static_cast<MuonParamState&>(*state->second).momentum_buffer})
        all.push_back(tensor.detach().clone());
    }
    return all;
  };
  const double first = step(1);
  const MuonTensors before = everything();
  step(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(same_bytes(everything(), before));
  double last = first;
  for (int i = 0; i < 30; ++i) last = step(1);
  EXPECT_LT(last, 0.1 * first);
  amp::reset();
}

// The buffer has all bits of a gradient; the scale is a power of 2.
TEST(MuonSteps, UnscaleFloat32GradientsWithoutRounding) {
  const at::Tensor grad = values({4, 6}, 3);
  const auto stepped = [&](float scale) {
    const at::Tensor param = at::zeros({4, 6}).requires_grad_();
    Muon optimizer({param});
    if (scale != 1) optimizer.grad_scale = at::full({1}, scale);
    param.mutable_grad() = grad * scale;
    optimizer.step();
    return tensors_of(optimizer);
  };
  EXPECT_TRUE(same_bytes(stepped(0x1p20F), stepped(1)));
}

// A skip that only GradScaler's found_inf asks for, before and after the first step.
TEST(MuonSteps, AreSkippedByFoundInf) {
  const at::Tensor param = muon_values(muon_cases()[0], 0).requires_grad_();
  Muon optimizer({param});
  param.mutable_grad() = muon_values(muon_cases()[0], 1);
  optimizer.found_inf = at::ones({1});
  optimizer.step();
  EXPECT_TRUE(same_bytes(param, muon_values(muon_cases()[0], 0)));
  EXPECT_TRUE(optimizer.state().empty());
  optimizer.found_inf = at::zeros({1});
  optimizer.step();
  const MuonTensors before = tensors_of(optimizer);
  optimizer.found_inf = at::ones({1});
  optimizer.step();
  EXPECT_TRUE(same_bytes(tensors_of(optimizer), before));
}

// Unlike Python's before 2.15: without nesterov it would normalize the buffer of a bfloat16 parameter.
TEST(MuonSteps, LeaveTheBufferOf16BitParametersTheMeanOfGradients) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor param = muon_values(muon_cases()[0], 0).to(dtype).requires_grad_(),
                     grad = muon_values(muon_cases()[0], 1).to(dtype);
    Muon optimizer({param}, MuonOptions().nesterov(false).momentum(0.5));
    param.mutable_grad() = grad;
    optimizer.step();
    EXPECT_TRUE(same_bytes(tensors_of(optimizer)[1], grad.mul(0.5)));
    EXPECT_FALSE(same_bytes(param, muon_values(muon_cases()[0], 0).to(dtype)));
  }
}

// All singular values of a step come near 1: the iteration's coefficients bring those above 0.02 into [0.68, 1.14] (the
// interval of the source's page is [0.7, 1.2]); bfloat16 adds 2^-8 of the largest a few times.
TEST(MuonSteps, AreNearlyOrthogonal) {
  const at::Tensor param = at::zeros({16, 48}).requires_grad_();
  Muon optimizer({param}, MuonOptions(1).weight_decay(0));
  param.mutable_grad() = values({16, 48}, 3);
  optimizer.step();
  const at::Tensor singular = at::linalg_svdvals(param.detach());
  EXPECT_GT(singular.min().item<double>(), 0.6);
  EXPECT_LT(singular.max().item<double>(), 1.25);
}

// Where the next matrix has a momentum of another dtype, which LibTorch refuses, nothing has been updated.
TEST(MuonErrors, AnEmptyMatrixIsNoUpdate) {
  const at::Tensor empty = at::ones({0, 3}), matrix = at::ones({2, 3});
  Muon optimizer({empty, matrix});
  empty.mutable_grad() = at::ones({0, 3});
  matrix.mutable_grad() = at::ones({2, 3});
  auto state = std::make_unique<MuonParamState>();
  state->momentum_buffer = at::zeros({2, 3}, at::kDouble);
  optimizer.state()[matrix.unsafeGetTensorImpl()] = std::move(state);
  const std::string message = message_of([&] { optimizer.step(); });
  ASSERT_NE(message, "");
  EXPECT_EQ(message.find("had updated a part"), std::string::npos) << message;
  EXPECT_TRUE(same_bytes(matrix, at::ones({2, 3})));
}

TEST(MuonErrors, NameTheParameterAndTheRemedy) {
  const at::Tensor matrix = at::ones({2, 3}), bias = at::ones({3});
  using Value = c10::ValueError;
  expect_error<Value>(
      [&] {
        Muon({matrix, bias});
      },
      {"Parameter 1 of group 0, of shape [3]", "2-D", "FusedAdam", "amp::initialize"});
  expect_error<Value>([&] { Muon({matrix}, MuonOptions(-1)); }, {"lr must not be negative, got -1"});
  expect_error<Value>([&] { Muon({matrix}, MuonOptions().momentum(-1)); }, {"momentum"});
  expect_error<Value>([&] { Muon({matrix}, MuonOptions().weight_decay(-1)); }, {"weight_decay"});
  expect_error<Value>([&] { Muon({matrix}, MuonOptions().eps(-1)); }, {"eps"});
  expect_error<Value>([&] { Muon({matrix}, MuonOptions().ns_steps(100)); }, {"ns_steps must be in [0, 100), got 100"});
  expect_error<Value>([&] { Muon({matrix}, MuonOptions().ns_steps(-1)); }, {"ns_steps must be in [0, 100), got -1"});
  expect_error<Value>([&] { Muon({matrix}, MuonOptions().adjust_lr_fn("other")); },
                      {"'original' or 'match_rms_adamw', got 'other'"});
  expect_error<Value>([&] { Muon({matrix}, MuonOptions().master_storage(MasterStorage::remainder16)); }, {"master_storage"});
  Muon optimizer({matrix});
  expect_error<Value>([&] { optimizer.add_param_group({{at::ones({2, 2}), bias}}); }, {"Parameter 1 of group 1"});
  EXPECT_EQ(optimizer.param_groups().size(), 1);
  EXPECT_TRUE(MuonOptions() == MuonOptions(1e-3)
                                   .weight_decay(0.1)
                                   .momentum(0.95)
                                   .nesterov(true)
                                   .ns_coefficients({3.4445, -4.775, 2.0315})
                                   .eps(1e-7)
                                   .ns_steps(5)
                                   .adjust_lr_fn("original"));
}

// A parameter that set_data made a vector, after it was given to the optimizer.
TEST(MuonErrors, AStepChecksBeforeItChangesAnything) {
  const at::Tensor first = at::ones({2, 3}), second = at::ones({3, 2});
  Muon optimizer({first, second});
  first.mutable_grad() = at::ones({2, 3});
  second.set_data(at::ones({6}));
  second.mutable_grad() = at::ones({6});
  expect_error<c10::ValueError>([&] { optimizer.step(); }, {"Parameter 1 of group 0, of shape [6]"});
  EXPECT_TRUE(same_bytes(first, at::ones({2, 3})));
}

}  // namespace
}  // namespace test
