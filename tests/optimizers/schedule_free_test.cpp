// Schedule-free AdamW: the paper's three sequences, the reference implementation's numbers, and the modes with masters.
#include <apex_cpp/amp.h>

#include <cmath>
#include <limits>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

namespace amp = apex::amp;
using namespace apex::optimizers;
using apex::test::expect_error;
using ScheduleFreeOptions = FusedScheduleFreeAdamWOptions;

at::Tensor exact_values(int64_t seed, int64_t count = 4) {
  const at::Tensor i = at::arange(count);
  return ((i * i % 61 + i * 37 + seed * 101) % 255 - 127).to(at::kFloat).div(64);
}

ScheduleFreeOptions busy_options() {
  return ScheduleFreeOptions(0.05).betas({0.75, 0.875}).eps(1e-3).weight_decay(0.1).warmup_steps(3).r(1).weight_lr_power(1);
}

// x, y and z of one parameter, and the sums of its group, in float64, as algorithm 1 of the paper has them.
struct Sequences {
  at::Tensor x, y, z, square;
  double weight_sum = 0, lr_max = 0;

  explicit Sequences(const at::Tensor& param)
      : x(param.detach().to(at::kDouble)), y(x.clone()), z(x.clone()), square(at::zeros_like(x)) {}

  void step(const ScheduleFreeOptions& options, int64_t t, const at::Tensor& grad) {
    const auto [beta1, beta2] = options.betas();
    const double warmup = t <= options.warmup_steps() ? static_cast<double>(t) / options.warmup_steps() : 1;
    const double lr = options.lr() * warmup;
    lr_max = std::max(lr_max, lr);
    const double weight = std::pow(t, options.r()) * std::pow(lr_max, options.weight_lr_power());
    weight_sum += weight;
    if (!grad.defined()) return;
    square = beta2 * square + (1 - beta2) * grad * grad;
    const at::Tensor denominator = (square / (1 - std::pow(beta2, t))).sqrt() + options.eps();
    z = z - lr * (grad / denominator + options.weight_decay() * y);
    x = x + weight / weight_sum * (z - x);
    y = (1 - beta1) * z + beta1 * x;
  }
};

// Values stay below 8, and a step has fewer than 16 operations that round to float32. A switch to x has 3 more, and multiplies
// the errors of y and z by up to 1 / beta1.
constexpr double kModeBound = 2 * 6 * 20 * 8 * 0x1p-24;
// The same of values below 2.
constexpr double kReferenceBound = kModeBound / 4;

double distance(const at::Tensor& param, const at::Tensor& expected) {
  return (param.detach().to(at::kDouble) - expected).abs().max().item<double>();
}

TEST(ScheduleFree, FollowsThePaper) {
  const std::vector<ScheduleFreeOptions> options = {busy_options(), ScheduleFreeOptions(0.02)};
  std::vector<at::Tensor> params = make_params(1);
  Groups groups;
  groups.emplace_back(std::vector<at::Tensor>(params.begin(), params.begin() + 2), options[0].clone());
  groups.emplace_back(std::vector<at::Tensor>(params.begin() + 2, params.end()), options[1].clone());
  FusedScheduleFreeAdamW optimizer(groups);
  std::vector<Sequences> expected(params.begin(), params.end());
  for (int64_t step = 1; step <= 6; ++step) {
    optimizer.train();
    set_grads(params, 10 * step);
    if (step == 3) params[1].mutable_grad().reset();
    for (size_t i = 0; i < params.size(); ++i) {
      const at::Tensor& grad = params[i].grad();
      expected[i].step(options[i / 2], step, grad.defined() ? grad.to(at::kDouble) : grad);
    }
    optimizer.step();
    for (size_t i = 0; i < params.size(); ++i) EXPECT_LE(distance(params[i], expected[i].y), kModeBound) << step << ", " << i;
    optimizer.eval();
    for (size_t i = 0; i < params.size(); ++i) EXPECT_LE(distance(params[i], expected[i].x), kModeBound) << step << ", " << i;
  }
}

// Recorded in float64 from AdamWScheduleFree of the package schedulefree 1.4.1 (foreach=False), with an eval() and a train()
// after the third step.
TEST(ScheduleFree, HasTheNumbersOfTheReference) {
  struct Recorded {
    ScheduleFreeOptions options;
    std::vector<double> y, x;
  };
  const std::vector<Recorded> cases = {{ScheduleFreeOptions(),
                                        {-1.9844666209302133, -1.3950941395852439, -0.7669101440621654, -0.10997474386679786},
                                        {-1.9842841811100906, -1.3951646705645238, -0.7667814473462474, -0.10991316508467561}},
                                       {busy_options(),
                                        {-1.9739907401979995, -1.3942501336592275, -0.770953301194288, -0.09413313580705698},
                                        {-1.9727638196676078, -1.4006120480545823, -0.7667551477805121, -0.08854989685931451}}};
  for (const auto& [options, y, x] : cases) {
    const at::Tensor param = exact_values(0).requires_grad_();
    FusedScheduleFreeAdamW optimizer({param}, options);
    optimizer.train();
    for (int64_t step = 1; step <= 6; ++step) {
      param.mutable_grad() = exact_values(step);
      optimizer.step();
      if (step != 3) continue;
      optimizer.eval();
      optimizer.train();
    }
    EXPECT_LE(distance(param, at::tensor(y, at::kDouble)), kReferenceBound);
    optimizer.eval();
    EXPECT_LE(distance(param, at::tensor(x, at::kDouble)), kReferenceBound);
  }
}

// The gradient of its output is the input.
struct VectorNetImpl : torch::nn::Module {
  explicit VectorNetImpl(const at::Tensor& initial) : weight(register_parameter("weight", initial.clone())) {}
  at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(); }
  at::Tensor weight;
};
TORCH_MODULE(VectorNet);

using StateTensors = std::vector<at::Tensor>;

// What an optimizer over one parameter has, with the master that it keeps itself.
StateTensors param_and_state(FusedScheduleFreeAdamW& optimizer) {
  const at::Tensor& param = optimizer.param_groups()[0].params()[0];
  const at::Tensor kept = optimizer.kept_master_of(param);
  auto& state = static_cast<FusedScheduleFreeAdamWParamState&>(*optimizer.state().at(param.unsafeGetTensorImpl()));
  return copies_of({kept.defined() ? kept : param, state.z, state.exp_avg_sq});
}

constexpr int64_t kWeights = 100;

// Two steps, an evaluation, two steps; `modes` gets the values after each part.
template <class Step>
std::vector<StateTensors> two_epochs(FusedScheduleFreeAdamW& optimizer, const Step& step, const std::function<void()>& look) {
  std::vector<StateTensors> modes;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    optimizer.train();
    for (int64_t i = 0; i < 2; ++i) step(exact_values(1 + 2 * epoch + i, kWeights));
    for (const bool training : {true, false}) {
      training ? optimizer.train() : optimizer.eval();
      look();
      modes.push_back(param_and_state(optimizer));
    }
  }
  return modes;
}

std::vector<StateTensors> without_amp() {
  const at::Tensor param = exact_values(0, kWeights).requires_grad_();
  FusedScheduleFreeAdamW optimizer({param}, busy_options());
  const auto step = [&](const at::Tensor& grad) {
    param.mutable_grad() = grad;
    optimizer.step();
  };
  return two_epochs(optimizer, step, [] {});
}

struct ModeSetup {
  const char* level;
  bool materialize;
  MasterStorage storage;
};

class ScheduleFreeAtALevel : public ::testing::TestWithParam<ModeSetup> {
 protected:
  void TearDown() override { amp::reset(); }
};

// The masters have the bits of float32 parameters in both modes, and the model follows them. A step after a switch would change
// bits of the masters if it took the switch for an edit of the model.
TEST_P(ScheduleFreeAtALevel, MastersSwitchAndTheModelFollows) {
  const auto [level, materialize, storage] = GetParam();
  VectorNet net(exact_values(0, kWeights));
  FusedScheduleFreeAdamW optimizer(net->parameters(),
                                   busy_options().materialize_master_grads(materialize).master_storage(storage));
  auto [model, opt] = amp::initialize(net, optimizer, level, amp::InitializeOptions().verbosity(0).loss_scale(128.0));
  const auto step = [&, &model = model, &opt = opt](const at::Tensor& grad) {
    opt.zero_grad();
    amp::scale_loss(model->forward(grad), opt).backward();
    opt.step();
  };
  const auto look = [&, &opt = opt] {
    const at::Tensor& stepped = opt.param_groups()[0].params()[0];
    EXPECT_TRUE(same_bytes(net->weight, stepped.to(net->weight.scalar_type())));
  };
  const auto modes = two_epochs(opt, step, look), expected = without_amp();
  for (size_t i = 0; i < modes.size(); ++i) EXPECT_TRUE(same_bytes(modes[i], expected[i])) << "after part " << i;
}

INSTANTIATE_TEST_SUITE_P(
    Levels, ScheduleFreeAtALevel,
    ::testing::Values(ModeSetup{"O0", true, MasterStorage::float32}, ModeSetup{"O1", true, MasterStorage::float32},
                      ModeSetup{"O2", true, MasterStorage::float32}, ModeSetup{"O2", false, MasterStorage::float32},
                      ModeSetup{"O4", false, MasterStorage::float32}, ModeSetup{"O5", true, MasterStorage::float32},
                      ModeSetup{"O5", false, MasterStorage::float32}, ModeSetup{"O5", true, MasterStorage::remainder16}),
    [](const auto& test) {
      return std::string(test.param.level) + (test.param.materialize ? "" : "InFusedOrder") +
             (test.param.storage == MasterStorage::float32 ? "" : "WithRemainders");
    });

// At O3 the parameters themselves are 16-bit: x and back costs them bits, but no more than a rounding each.
TEST(ScheduleFree, SwitchesParametersWithoutMasters) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor param = exact_values(0).to(dtype).requires_grad_();
    FusedScheduleFreeAdamW optimizer({param}, busy_options());
    optimizer.train();
    param.mutable_grad() = exact_values(1).to(dtype);
    for (int i = 0; i < 3; ++i) optimizer.step();
    const at::Tensor y = param.detach().to(at::kFloat).clone();
    const at::Tensor z = param_and_state(optimizer)[1];
    EXPECT_EQ(z.scalar_type(), at::kFloat);
    optimizer.eval();
    EXPECT_TRUE(same_bytes(param.detach(), (y + (1 - 1 / 0.75) * (z - y)).to(dtype)));
    EXPECT_FALSE(same_bytes(param.detach(), y.to(dtype)));
  }
}

// A value that the program writes into the model in eval mode is part of x, and reaches the masters.
TEST(ScheduleFree, EditsOfTheModelAreKeptByASwitch) {
  VectorNet net(exact_values(0, kWeights));
  FusedScheduleFreeAdamW optimizer(net->parameters(), busy_options());
  auto [model, opt] = amp::initialize(net, optimizer, "O5", amp::InitializeOptions().verbosity(0));
  opt.train();
  amp::scale_loss(model->forward(exact_values(1, kWeights)), opt).backward();
  opt.step();
  opt.eval();
  const auto before = param_and_state(opt);
  const at::NoGradGuard no_grad;
  net->weight[7].fill_(3);
  opt.train();
  at::Tensor x = before[0].clone();
  x[7] = 3;
  const at::Tensor y = x + (1 - 0.75) * (before[1] - x);
  EXPECT_LE(distance(param_and_state(opt)[0], y.to(at::kDouble)), 8 * 0x1p-22);
  amp::reset();
}

// As of a convolution's weight that the program makes channels-last after the last step.
TEST(ScheduleFree, ASwitchTakesEachElementWhereTheLayoutHasChanged) {
  VectorNet net(exact_values(0, kWeights).view({20, 5}));
  FusedScheduleFreeAdamW optimizer(net->parameters(), busy_options());
  auto [model, opt] = amp::initialize(net, optimizer, "O5", amp::InitializeOptions().verbosity(0));
  opt.train();
  amp::scale_loss(model->forward(exact_values(1, kWeights).view({20, 5})), opt).backward();
  opt.step();
  const auto before = param_and_state(opt);
  net->weight.set_data(net->weight.detach().t().contiguous().t());
  opt.eval();
  const at::Tensor x = before[0] + (1 - 1 / 0.75) * (before[1] - before[0]), master = param_and_state(opt)[0];
  EXPECT_LE(distance(master, x.to(at::kDouble)), 8 * 0x1p-22);
  EXPECT_TRUE(net->weight.equal(master.to(at::kBFloat16)));
  EXPECT_FALSE(net->weight.is_contiguous()) << "the layout is the program's";
  amp::reset();
}

TEST(ScheduleFree, ASkippedStepChangesNoBitAndNoSum) {
  VectorNet net(exact_values(0, kWeights));
  FusedScheduleFreeAdamW optimizer(net->parameters(), busy_options());
  auto [model, opt] = amp::initialize(net, optimizer, "O2", amp::InitializeOptions().verbosity(0).loss_scale("dynamic"));
  opt.train();
  const auto step = [&, &model = model, &opt = opt](double factor) {
    opt.zero_grad();
    amp::scale_loss(model->forward(exact_values(1, kWeights) * factor), opt).backward();
    opt.step();
  };
  do {
    step(0x1p-14);
  } while (amp::step_result(opt).skipped);  // until the scale fits
  const auto values = param_and_state(opt);
  const std::string archive = saved(opt);
  step(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(amp::step_result(opt).skipped);
  EXPECT_TRUE(same_bytes(param_and_state(opt), values));
  EXPECT_EQ(saved(opt), archive) << "the sums, the count or the mode";
  step(0x1p-14);
  EXPECT_NE(saved(opt), archive);
  amp::reset();
}

TEST(ScheduleFree, FoundInfSkipsAStep) {
  const at::Tensor param = exact_values(0).requires_grad_();
  FusedScheduleFreeAdamW optimizer({param}, busy_options());
  optimizer.train();
  param.mutable_grad() = exact_values(1);
  const auto step = [&](double found) {
    optimizer.found_inf = at::full({1}, found);
    optimizer.step();
    return saved(optimizer);
  };
  const std::string first = step(1);
  EXPECT_TRUE(same_bytes(param.detach(), exact_values(0)));
  EXPECT_EQ(optimizer.steps_taken(), 0);
  const std::string second = step(0);
  EXPECT_NE(second, first);
  EXPECT_EQ(step(1), second);
}

TEST(ScheduleFree, ALoadedOptimizerHasTheModeOfTheSavedOne) {
  for (const bool training : {true, false}) {
    const at::Tensor param = exact_values(0).requires_grad_();
    FusedScheduleFreeAdamW optimizer({param}, busy_options());
    optimizer.train();
    param.mutable_grad() = exact_values(1);
    optimizer.step();
    if (!training) optimizer.eval();
    const at::Tensor other = param.detach().clone().requires_grad_();
    FusedScheduleFreeAdamW loaded({other}, busy_options());
    load(loaded, saved(optimizer));
    EXPECT_EQ(loaded.is_training(), training);
    for (auto* each : {&optimizer, &loaded}) {
      each->train();
      each->param_groups()[0].params()[0].mutable_grad() = exact_values(2);
      each->step();
    }
    EXPECT_TRUE(same_bytes(param, other));
    optimizer.eval();
    loaded.eval();
    EXPECT_TRUE(same_bytes(param, other));
  }
}

// The weights of the averages go by the largest rate so far, which was before the load.
TEST(ScheduleFree, ALoadedOptimizerKnowsTheLargestRate) {
  const at::Tensor param = exact_values(0).requires_grad_();
  auto options = busy_options().warmup_steps(0).lr(0.4);
  FusedScheduleFreeAdamW first({param}, options), second({param}, options);
  first.train();
  Sequences expected(param);
  const auto step_with = [&](FusedScheduleFreeAdamW& optimizer, int64_t step) {
    param.mutable_grad() = exact_values(step);
    expected.step(options, step, exact_values(step).to(at::kDouble));
    optimizer.step();
    EXPECT_LE(distance(param, expected.y), kModeBound) << step;
  };
  for (int64_t step = 1; step <= 2; ++step) step_with(first, step);
  load(second, saved(first));
  options.lr(0.04);
  second.param_groups()[0].options().set_lr(0.04);
  for (int64_t step = 3; step <= 5; ++step) step_with(second, step);
}

TEST(ScheduleFree, AStepInEvalModeIsAnErrorThatChangesNothing) {
  VectorNet net(exact_values(0, kWeights));
  FusedScheduleFreeAdamW optimizer(net->parameters());
  auto [model, opt] = amp::initialize(net, optimizer, "O2", amp::InitializeOptions().verbosity(0).loss_scale(1.0));
  amp::scale_loss(model->forward(exact_values(1, kWeights)), opt).backward();
  expect_error([&, &opt = opt] { opt.step(); }, {"FusedScheduleFreeAdamW", "eval mode", "train()"});
  EXPECT_TRUE(same_bytes(net->weight.detach(), exact_values(0, kWeights).to(at::kHalf)));
  opt.train();
  opt.step();
  EXPECT_EQ(opt.steps_taken(), 1);
  expect_error([&] { optimizer.eval(); }, {"train() or eval() was called on", "the handle"});
  amp::reset();
  FusedScheduleFreeAdamW plain({exact_values(0)});
  bool ran = false;
  expect_error([&] { plain.step([&] { return ran = true, at::Tensor(); }); }, {"eval mode"});
  EXPECT_FALSE(ran);
}

TEST(ScheduleFree, ASwitchByOtherOptionsThatHasNoWayBackIsAnErrorThatChangesNothing) {
  const at::Tensor param = exact_values(0).requires_grad_();
  FusedScheduleFreeAdamW optimizer({param}, busy_options());
  optimizer.train();
  for (int step = 1; step < 3; ++step) {
    param.mutable_grad() = exact_values(step);
    optimizer.step();
  }
  const at::Tensor before = param.detach().clone();
  auto& options = static_cast<ScheduleFreeOptions&>(optimizer.param_groups()[0].options());
  options.betas({0, 0.9});
  expect_error<c10::ValueError>([&] { optimizer.eval(); }, {"Group 0 of", "the first of betas must be above 0"});
  EXPECT_TRUE(same_bytes(param.detach(), before));
  EXPECT_TRUE(optimizer.is_training());
  options = busy_options();
  optimizer.eval();
  EXPECT_FALSE(same_bytes(param.detach(), before));
}

TEST(ScheduleFree, RefusesWhatHasNoAverage) {
  const auto make = [](const ScheduleFreeOptions& options) {
    return [options] { FusedScheduleFreeAdamW({exact_values(0)}, options); };
  };
  using Value = c10::ValueError;
  expect_error<Value>(make(ScheduleFreeOptions().betas({0, 0.9})),
                      {"FusedScheduleFreeAdamW", "the first of betas must be above 0"});
  expect_error<Value>(make(ScheduleFreeOptions().betas({0.9, 1})), {"betas must be in [0, 1), got (0.9, 1)"});
  expect_error<Value>(make(ScheduleFreeOptions(-1)), {"lr must not be negative, got -1"});
  expect_error<Value>(make(ScheduleFreeOptions().eps(-1)), {"eps"});
  expect_error<Value>(make(ScheduleFreeOptions().weight_decay(-1)), {"weight_decay"});
  expect_error<Value>(make(ScheduleFreeOptions().warmup_steps(-1)), {"warmup_steps must not be negative, got -1"});
  expect_error<Value>(make(ScheduleFreeOptions().r(-1)), {"r must not be negative"});
  EXPECT_TRUE(ScheduleFreeOptions() == ScheduleFreeOptions(0.0025)
                                           .betas({0.9, 0.999})
                                           .eps(1e-8)
                                           .weight_decay(0)
                                           .warmup_steps(0)
                                           .r(0)
                                           .weight_lr_power(2)
                                           .set_grad_none(true)
                                           .materialize_master_grads(true));
}

}  // namespace
}  // namespace test
