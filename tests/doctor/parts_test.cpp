// The parts of the doctor, and its errors for programs that break its rules.
#include <apex_cpp/amp/doctor/divergence.h>
#include <apex_cpp/amp/doctor/fp32_rules.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "tests/amp/warnings.h"
#include "tests/doctor/networks.h"
#include "tests/errors.h"

namespace apex::test {
namespace {

using amp::detail::agreement;
using amp::detail::align;
using torch::Tensor;

constexpr float kInf = INFINITY, kNan = NAN;

TEST(Agreement, IsTheSignalToNoiseRatioInDecibels) {
  const Tensor x = torch::tensor({3.0f, 4.0f});
  // |x| = 5, |x - y| = 0.5: 20 log10(10)
  EXPECT_DOUBLE_EQ(agreement(x, torch::tensor({3.0, 4.5}, torch::kDouble)).sqnr, 20.0);
  EXPECT_EQ(agreement(x, x.to(torch::kHalf)).sqnr, INFINITY);
  EXPECT_EQ(agreement(torch::zeros({2}), x).sqnr, INFINITY) << "zeros have no signal to compare with";
}

TEST(Agreement, CountsNonFiniteValuesAndZeros) {
  const auto result = agreement(torch::tensor({1.0f, 2.0f, 3.0f, 0.0f, kInf}), torch::tensor({1.0f, kNan, 0.0f, 0.0f, kInf}));
  EXPECT_EQ(result.nonfinite, 1);
  EXPECT_DOUBLE_EQ(result.became_zero, 0.5);  // of the finite ones, 1 and 3
  EXPECT_DOUBLE_EQ(result.sqnr, 10 * std::log10(10.0 / 9.0));
}

TEST(Agreement, OfTensorsThatCannotBeComparedIsThatOfEqualOnes) {
  const Tensor x = torch::ones({2}), none;
  for (const auto& [a, b] : {std::pair(x, none), {none, x}, {none, none}, {x, torch::zeros({3})}}) {
    EXPECT_EQ(agreement(a, b).sqnr, INFINITY);
    EXPECT_EQ(agreement(a, b).became_zero, 0);
  }
}

TEST(Fp32RulesOfACall, AreItsModuleOrItsOperators) {
  using amp::detail::Fp32Rules;
  amp::detail::ObservedCall call;
  call.op = "aten::mm";
  EXPECT_EQ(rules_for(call), Fp32Rules{}) << "neither a module nor a new tensor";
  call.returns_new_tensor = true;
  EXPECT_EQ(rules_for(call), (Fp32Rules{{false, "aten::mm"}}));
  call.inner_ops = {"aten::mm", "aten::exp"};
  EXPECT_EQ(rules_for(call), (Fp32Rules{{false, "aten::mm"}, {false, "aten::exp"}}));
  call.module = "fc1";
  EXPECT_EQ(rules_for(call), (Fp32Rules{{true, "fc1"}}));
  call.returns_new_tensor = false;
  EXPECT_EQ(rules_for(call), (Fp32Rules{{true, "fc1"}})) << "an autograd function";
  call.inner_ops.clear();
  EXPECT_EQ(rules_for(call), Fp32Rules{}) << "a view, or in place";
}

TEST(Alignment, ContinuesAtTheNearestEqualNames) {
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(align({"a", "b", "c"}, {"a", "b", "c"}), (Pairs{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_EQ(align({"a", "b", "c"}, {"a", "x", "y", "b", "c"}), (Pairs{{0, 0}, {1, 3}, {2, 4}}));
  EXPECT_EQ(align({"a", "x", "b"}, {"a", "y", "b"}), (Pairs{{0, 0}, {2, 2}}));
  EXPECT_EQ(align({"a"}, {"b"}), Pairs{});
  EXPECT_EQ(align({}, {"b"}), Pairs{});
  // A vector keeps the memory of a name that was taken out.
  std::vector<std::string> names{"a", "b"};
  EXPECT_EQ(align(names, {"b"}), (Pairs{{1, 0}}));
  names.pop_back();
  EXPECT_EQ(align(names, {"b"}), Pairs{});
}

// Every single item, pair and triple of 12 items: the search finds exactly this set, adjacent or not.
TEST(DeltaDebugging, FindsTheSmallestSetIfItIsOneItem) {
  std::vector<int> items(12);
  std::iota(items.begin(), items.end(), 0);
  for (const int bits : {1, 2, 3}) {
    for (int set = 1; set < 1 << 12; ++set) {
      if (__builtin_popcount(static_cast<unsigned>(set)) != bits) continue;
      const auto found = amp::detail::minimal(items, [&](const std::vector<int>& some) {
        int has = 0;
        for (const int item : some) has |= 1 << item;
        return (has & set) == set;
      });
      int has = 0;
      for (const int item : found) has |= 1 << item;
      ASSERT_EQ(has, set);
    }
  }
}

TEST(DeltaDebugging, NeedsFewQueriesIfOneItemSuffices) {
  std::vector<int> items(64);
  std::iota(items.begin(), items.end(), 0);
  int questions = 0;
  const auto found = amp::detail::minimal(items, [&](const std::vector<int>& some) {
    ++questions;
    return std::find(some.begin(), some.end(), 41) != some.end();
  });
  EXPECT_EQ(found, std::vector<int>{41});
  EXPECT_LE(questions, 12);  // two for each halving
}

std::string message_of_doctor(const amp::Doctor::Program& program, const amp::DoctorOptions& options = {}) {
  return message_of([&] { amp::Doctor("O2", program, options).first_divergence(); });
}

TEST(DoctorProgram, WithoutAStepOrLeavingItsLoopIsAnErrorThatSaysHow) {
  const auto initialize = [](const amp::OptLevel& level) {
    torch::nn::Linear model(2, 2);
    return amp::initialize(model, level);
  };
  EXPECT_NE(message_of_doctor([&](const auto& level, auto&) { auto net = initialize(level); }).find("ended without a step"),
            std::string::npos);
  EXPECT_NE(message_of_doctor([&](const auto& level, auto& run) {
              auto net = initialize(level);
              run.next();
            }).find("ended after step 0 without calling run.next() again"),
            std::string::npos);
  EXPECT_NE(message_of_doctor([&](const auto& level, auto& run) {
              auto net = initialize(level);
              while (run.next()) run.loss(torch::zeros({2}));
            }).find("a tensor of 2 elements"),
            std::string::npos);
  EXPECT_NE(message_of_doctor([](const auto&, auto&) {}, amp::DoctorOptions().seeds(1)).find("seeds=1 is not allowed"),
            std::string::npos);
}

// A level that goes wrong is no worse than O0 where both come to a loss of nothing.
TEST(DoctorProgram, WithoutAReportedLossIsAnErrorAtTheStep) {
  const auto trains = [](int64_t silent_step) {
    return [=](const amp::OptLevel& level, amp::DoctorRun& run) {
      torch::nn::Linear model(2, 2);
      auto net = amp::initialize(model, level);
      while (run.next()) {
        const Tensor loss = net->forward(torch::ones({1, 2})).sum();
        if (run.step() != silent_step) run.loss(loss);
      }
    };
  };
  for (const int64_t step : {0, 3}) {
    EXPECT_EQ(message_of_doctor(trains(step)),
              "Doctor: step " + std::to_string(step) + " ended without its loss. Write run.loss(loss) in every step.");
  }
  EXPECT_EQ(message_of_doctor(trains(-1)), "");
}

// What is wrong at O0 too is not what 16 bits do.
TEST(DoctorProgram, ThatDoesNotTrainAtO0IsAnError) {
  const auto lost_at = [](int64_t step, double loss) {
    return [=](const amp::OptLevel& level, amp::DoctorRun& run) {
      torch::nn::Linear model(2, 2);
      auto net = amp::initialize(model, level);
      while (run.next()) run.loss(torch::scalar_tensor(run.step() == step ? loss : 1.0));
    };
  };
  const std::string rest =
      "). Another level does not help. Check the program's data, learning rate and loss, and look for tensors that it converts "
      "to 16 bits itself.";
  const auto options = amp::DoctorOptions().seed(7);
  EXPECT_EQ(message_of_doctor(lost_at(2, NAN), options),
            "Doctor: the program does not train at O0 itself (seed 7, step 2: the loss is nan" + rest);
  EXPECT_EQ(message_of_doctor(lost_at(0, INFINITY), options),
            "Doctor: the program does not train at O0 itself (seed 7, step 0: the loss is infinite" + rest);
}

// What the first step changes must not grow from step to step.
TEST(DoctorRun, DisturbsTheWeightsOnceByRoundingErrors) {
  torch::nn::Linear model(4, 4);
  const Tensor before = model->weight.detach().clone();
  const Tensor disturbed = before + amp::detail::kRoundingErrors * (before.to(at::kBFloat16).to(at::kFloat) - before);
  auto net = amp::initialize(model, "O0", amp::InitializeOptions().verbosity(0));
  const auto record = std::make_shared<amp::detail::RunRecord>();
  record->steps = 3;
  record->perturb_weights = at::kBFloat16;
  amp::DoctorRun run(record);
  while (run.next()) {
    EXPECT_TRUE(torch::equal(model->weight, disturbed)) << "step " << run.step();
    run.loss(1.0);
  }
  amp::reset();
}

// An overflow is what the doctor looks for; scale_loss would warn after ten in a row.
TEST(DoctorRun, WarnsOfNoStepsThatAreSkipped) {
  torch::nn::Linear model(2, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", amp::InitializeOptions().verbosity(0));
  const auto record = std::make_shared<amp::detail::RunRecord>();
  record->steps = 12;
  CaughtWarnings warnings;
  amp::DoctorRun run(record);
  while (run.next()) {
    opt.zero_grad();
    { amp::scale_loss(net->forward(torch::ones({1, 2})).sum() * INFINITY, opt).backward(); }
    opt.step();
    run.loss(1.0);
  }
  amp::reset();
  EXPECT_EQ(std::count(record->skipped.begin(), record->skipped.end(), true), 12);
  EXPECT_EQ(warnings.text, "");
}

// One loss is used in the first step only; in the third step the first of two passes overflows, the second does not.
TEST(DoctorRun, CountsASkipInItsOwnStepOnly) {
  torch::nn::Linear model(2, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", amp::InitializeOptions().verbosity(0).num_losses(2));
  const auto record = std::make_shared<amp::detail::RunRecord>();
  record->steps = 4;
  const auto pass = [&net = net, &opt = opt](int64_t loss_id, double factor) {
    amp::scale_loss(net->forward(torch::ones({1, 2})).sum() * factor, opt, loss_id).backward();
  };
  amp::DoctorRun run(record);
  while (run.next()) {
    opt.zero_grad();
    if (run.step() == 0) pass(1, INFINITY);
    pass(0, run.step() == 2 ? INFINITY : 1.0);
    pass(0, 1.0);
    opt.step();
    run.loss(1.0);
  }
  amp::reset();
  EXPECT_EQ(record->skipped, (std::vector<bool>{true, false, true, false}));
}

/// A product with the weight of a layer, which is no argument.
struct OfLayer : torch::autograd::Function<OfLayer> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x, const torch::nn::Linear& layer) {
    return x.mm(layer->weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list grads) {
    return {grads[0], Tensor()};
  }
};
struct Layered : torch::nn::Module {
  Tensor forward(const Tensor& x) { return torch::tanh(OfLayer::apply(x, layer)); }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 2));
};

TEST(DoctorRun, NamesTheModuleAndTheOperatorsThatAFunctionUsesInside) {
  Layered model;
  auto net = amp::initialize(model, "O0", amp::InitializeOptions().verbosity(0));
  const auto record = std::make_shared<amp::detail::RunRecord>();
  record->observed_step = 0;
  amp::DoctorRun run(record);
  while (run.next()) run.loss(net->forward(torch::ones({2, 2}, torch::requires_grad())).sum());
  amp::reset();
  std::string module = "no call";
  std::vector<std::string> inside;
  for (const auto& call : record->observed.calls) {
    if (call.op.find("OfLayer") == std::string::npos) continue;
    module = call.module;
    inside = call.inner_ops;
  }
  EXPECT_EQ(module, "layer");
  EXPECT_EQ(inside, std::vector<std::string>{"aten::mm"});
}

TEST(DoctorRun, ObservesTheChosenStepAlone) {
  torch::nn::Linear model(2, 2);
  auto net = amp::initialize(model, "O0", amp::InitializeOptions().verbosity(0));
  const auto record = std::make_shared<amp::detail::RunRecord>();
  record->steps = 4;
  record->observed_step = 1;
  amp::DoctorRun run(record);
  while (run.next()) {
    Tensor x = torch::ones({2});
    for (int64_t i = 0; i <= run.step(); ++i) x = torch::tanh(x);
    run.loss(1.0);
  }
  amp::reset();
  const auto& calls = record->observed.calls;
  EXPECT_EQ(std::count_if(calls.begin(), calls.end(), [](const auto& call) { return call.op == "aten::tanh"; }), 2);
}

// Casts and views, and calls whose results are no floating-point numbers, are not what a level changes.
TEST(DoctorRun, ObservesTheCallsThatComputeFloatingPointNumbers) {
  torch::nn::Linear model(2, 2);
  auto net = amp::initialize(model, "O0", amp::InitializeOptions().verbosity(0));
  const auto record = std::make_shared<amp::detail::RunRecord>();
  record->observed_step = 0;
  const Tensor x = torch::ones({4});
  amp::DoctorRun run(record);
  while (run.next()) {
    x.view({2, 2});
    x.to(torch::kDouble);
    x.argmax();
    run.loss(x.tanh().sum());
  }
  amp::reset();
  std::vector<std::string> ops;
  for (const auto& call : record->observed.calls) ops.push_back(call.op);
  EXPECT_EQ(ops, (std::vector<std::string>{"aten::tanh", "aten::sum"}));
}

// A float32 sum would lose the terms of 2^-30, and so would a share of float64 that is rounded to float32.
TEST(StepObserver, AddsUpTheSharesOfAnInputInFloat64) {
  const Tensor one = torch::ones({1}), small = torch::full({1}, 0x1p-30);
  const Tensor both = torch::full({1}, 1 + 0x1p-30, torch::kDouble);
  const auto observer = std::make_shared<amp::detail::StepObserver>();
  observer->start();
  one.tanh();
  for (const Tensor& share : {one, small, both}) observer->add_input_grad(0, 0, share);
  const auto calls = observer->take();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].input_grads.at(0).item<double>(), 2 + 0x1p-29);
}

TEST(StepObserver, IgnoresGradientsThatComeLateAndThoseThatCannotBeCompared) {
  const Tensor x = torch::ones({2}), sparse = x.to_sparse(), integers = torch::ones({2}, torch::kLong);
  for (const bool is_late : {false, true}) {
    const auto observer = std::make_shared<amp::detail::StepObserver>();
    observer->start();
    x.tanh();
    if (is_late) observer->stop();
    for (const Tensor& grad : is_late ? std::vector<Tensor>{x} : std::vector<Tensor>{sparse, integers}) {
      observer->add_output_grad(0, 0, grad);
      observer->add_input_grad(0, 0, grad);
    }
    const auto calls = observer->take();
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_TRUE(calls[0].output_grads.empty()) << is_late;
    EXPECT_TRUE(calls[0].input_grads.empty()) << is_late;
  }
}

TEST(DoctorProgram, LeavesNoSessionBehind) {
  amp::Doctor doctor("O1", FaultyProgram{"mlp", nullptr, 0}, amp::DoctorOptions().steps(1));
  EXPECT_EQ(doctor.first_divergence().place(), "none");
  EXPECT_ANY_THROW(amp::properties());
}

amp::detail::ObservedStep step_of(const std::string& op, float output) {
  amp::detail::ObservedStep step;
  for (int i = 0; i < 2; ++i) {
    auto& call = step.calls.emplace_back();
    call.op = op;
    call.inputs = {torch::ones({4})};
    call.outputs = {torch::full({4}, i == 0 ? 1.0f : output)};
  }
  return step;
}

// Values computed by the call are not reported as the weight's.
TEST(LocatedDivergence, OnAWeightDoesNotMentionTheCall) {
  const auto reference = step_of("aten::addmm", 2);
  auto level = step_of("aten::addmm", kInf);
  const auto of_call = amp::detail::first_divergence(reference, reference, level, {40, 20}).divergence;
  EXPECT_EQ(of_call.place(), "forward model aten::addmm");
  EXPECT_EQ(of_call.count, 4);
  EXPECT_EQ(of_call.call, 1);
  for (const auto& [parameter, place] :
       {std::pair("net.0.weight", "optimizer net.0 weight"), {"bias", "optimizer model bias"}}) {
    level.nonfinite_weight = parameter;
    const auto of_weight = amp::detail::first_divergence(reference, reference, level, {40, 20}).divergence;
    EXPECT_EQ(of_weight.place(), place);
    EXPECT_EQ(of_weight.count, 0);
    EXPECT_EQ(of_weight.call, 0);
    EXPECT_EQ(of_weight.sqnr, 0);
  }
}

amp::Divergence found_in(const amp::detail::ObservedStep& reference, const amp::detail::ObservedStep& level,
                         double forward = 40) {
  return amp::detail::first_divergence(reference, reference, level, {forward, 20}).divergence;
}

// The control is perturbed by rounding errors. Where it agrees with the reference by the least drop of 6 dB more than the
// threshold, the level is compared, and where it agrees less, it is not.
TEST(LocatedDivergence, IgnoresATensorInWhichTheControlDiffers) {
  const auto reference = step_of("aten::addmm", 2), control = step_of("aten::addmm", 2.25f),
             level = step_of("aten::addmm", kInf);
  const double of_control = agreement(reference.calls[1].outputs[0], control.calls[1].outputs[0]).sqnr;  // 18 dB
  const auto place_with = [&](double threshold) {
    return amp::detail::first_divergence(reference, control, level, {threshold, 20}).divergence.place();
  };
  EXPECT_EQ(place_with(of_control - 6), "forward model aten::addmm");
  EXPECT_EQ(place_with(of_control - 6 + 1e-9), "none");
}

// Half of the values is not most of them.
TEST(LocatedDivergence, IsAnUnderflowWhereMostValuesBecameZero) {
  using Kind = amp::Divergence::Kind;
  for (const auto& [zeros, kind] : {std::pair(2, Kind::precision), {3, Kind::underflow}}) {
    const auto level = step_of("aten::mul", 1);
    level.calls[1].outputs[0].narrow(0, 0, zeros).zero_();
    const auto divergence = found_in(step_of("aten::mul", 1), level);
    EXPECT_TRUE(divergence.kind == kind) << zeros;
    EXPECT_DOUBLE_EQ(divergence.sqnr, 10 * std::log10(4.0 / zeros));  // of four ones
  }
}

TEST(LocatedDivergence, IsThatOfTheWorstTensorOfACall) {
  const auto step_with = [](const std::vector<float>& values) {
    auto step = step_of("aten::lstm", 1);
    for (const float value : values) step.calls[1].outputs.push_back(torch::full({4}, value));
    return step;
  };
  const auto reference = step_with({1.0f, 1.0f});
  for (const auto& values : {std::vector<float>{1.25f, 1.5f}, {1.5f, 1.25f}}) {
    EXPECT_DOUBLE_EQ(found_in(reference, step_with(values)).sqnr, 10 * std::log10(4.0));  // 1 / 0.5^2
  }
  EXPECT_EQ(found_in(reference, step_with({kInf, kNan})).count, 8);
}

/// Calls of "aten::op0", "aten::op1" and so on, each with an input and an output of one element.
amp::detail::ObservedStep chain_of(const std::vector<std::pair<float, float>>& values) {
  amp::detail::ObservedStep step;
  for (const auto& [input, output] : values) {
    auto& call = step.calls.emplace_back();
    call.op = "aten::op" + std::to_string(step.calls.size() - 1);
    call.inputs = {torch::full({1}, input)};
    call.outputs = {torch::full({1}, output)};
  }
  return step;
}

// Beside 1, 1.07 has 23 dB, 1.11 has 19 dB and 1.5 has 6 dB. Noise that has grown slowly is not the fault of the call that
// takes it below the threshold of 20 dB; without a call that lowers it by 6 dB, that call is the first place to look.
TEST(LocatedDivergence, IsAtTheFirstCallWithADrop) {
  const auto found = [](const std::vector<std::pair<float, float>>& values) {
    return found_in(chain_of(std::vector<std::pair<float, float>>(values.size(), {1.0f, 1.0f})), chain_of(values), 20);
  };
  EXPECT_EQ(found({{1.07f, 1.11f}, {1.0f, 1.5f}}).place(), "forward model aten::op1");
  EXPECT_EQ(found({{1.07f, 1.11f}, {1.0f, 1.0f}}).place(), "forward model aten::op0");
  // Between two calls, as by a cast: the input says how much is lost.
  const auto of_input = found({{1.0f, 1.0f}, {1.5f, 1.0f}});
  EXPECT_EQ(of_input.place(), "forward model aten::op1");
  EXPECT_DOUBLE_EQ(of_input.sqnr, 10 * std::log10(4.0));
}

TEST(LocatedDivergence, OfACallWithoutParametersIsInTheModuleAroundItsNeighbours) {
  struct Neighbours {
    std::string before, after, around;
  };
  for (const auto& [before, after, around] :
       {Neighbours{"encoder.1", "encoder.10", "encoder"}, Neighbours{"encoder.1", "encoder.1", "encoder.1"},
        Neighbours{"encoder", "encoder.1", "encoder"}, Neighbours{"encoder", "decoder", "model"},
        Neighbours{"", "decoder", "model"}}) {
    auto level = chain_of({{1.0f, 1.0f}, {1.0f, kInf}, {1.0f, 1.0f}});
    level.calls[0].module = before;
    level.calls[2].module = after;
    const auto divergence = found_in(chain_of({{1.0f, 1.0f}, {1.0f, 1.0f}, {1.0f, 1.0f}}), level);
    EXPECT_EQ(divergence.place(), "forward " + around + " aten::op1");
  }
}

// The calls before it are one of the operator in another module, one in its module, and another operator in its module.
TEST(LocatedDivergence, CountsTheCallsOfItsOperatorInItsModule) {
  auto reference = chain_of({{1.0f, 1.0f}, {1.0f, 1.0f}, {1.0f, 1.0f}, {1.0f, 1.0f}}), level = reference;
  for (auto* step : {&reference, &level}) {
    for (const size_t i : {0, 1, 3}) step->calls[i].op = "aten::mm";
    for (size_t i = 0; i < 4; ++i) step->calls[i].module = i == 0 ? "a" : "b";
  }
  level.calls[3].outputs = {torch::full({1}, kInf)};
  const auto divergence = found_in(reference, level);
  EXPECT_EQ(divergence.place(), "forward b aten::mm");
  EXPECT_EQ(divergence.call, 1);
}

TEST(LocatedDivergence, IsFoundInGradientsThatAllThreeRunsHave) {
  const auto with_grads = [](bool has_first, bool has_second, float second) {
    auto step = chain_of({{1.0f, 1.0f}});
    if (has_first) step.calls[0].input_grads[0] = torch::ones({1});
    if (has_second) step.calls[0].input_grads[1] = torch::full({1}, second);
    return step;
  };
  const auto place = [&](bool control_has_second, bool level_has_second) {
    const auto reference = with_grads(true, true, 1), control = with_grads(true, control_has_second, 1);
    const auto level = with_grads(false, level_has_second, kInf);
    return amp::detail::first_divergence(reference, control, level, {40, 20}).divergence.place();
  };
  EXPECT_EQ(place(true, true), "backward model aten::op0");
  EXPECT_EQ(place(false, true), "none");
  EXPECT_EQ(place(true, false), "none");
}

TEST(DivergencePrinted, NamesThePlaceAndTheProblem) {
  amp::Divergence divergence;
  divergence.kind = amp::Divergence::Kind::nonfinite;
  divergence.module = "encoder.0";
  divergence.op = "aten::addmm";
  divergence.count = 3;
  std::ostringstream text;
  text << divergence;
  EXPECT_EQ(text.str(), "forward encoder.0 aten::addmm (step 0, call 0): 3 values are Inf or NaN");
  const auto printed = [&] {
    text.str("");
    text << divergence;
    return text.str();
  };
  divergence.fixed_loss_scale = 1024;
  EXPECT_EQ(printed(), "forward encoder.0 aten::addmm (step 0, call 0): 3 values are Inf or NaN") << "not scaled";
  divergence.backward = true;
  EXPECT_EQ(printed(),
            "backward encoder.0 aten::addmm (step 0, call 0): 3 values are Inf or NaN; the loss scale is fixed at 1024: try a "
            "lower one, or \"dynamic\"");
  divergence.fixed_loss_scale = 1;
  EXPECT_EQ(printed(), "backward encoder.0 aten::addmm (step 0, call 0): 3 values are Inf or NaN") << "dynamic";
  divergence.sqnr = 12;
  divergence.kind = amp::Divergence::Kind::precision;
  EXPECT_EQ(printed(), "backward encoder.0 aten::addmm (step 0, call 0): signal to noise 12 dB");
  divergence.kind = amp::Divergence::Kind::underflow;
  EXPECT_EQ(printed(), "backward encoder.0 aten::addmm (step 0, call 0): most values became 0, signal to noise 12 dB");
  divergence.kind = amp::Divergence::Kind::none;
  EXPECT_EQ(printed(), "none");
}

}  // namespace
}  // namespace apex::test
