// The level that the doctor finds trains, and needs every one of its entries.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "tests/doctor/faults.h"
#include "tests/doctor/networks.h"
#include "tests/errors.h"

namespace apex::test {
namespace {

constexpr int64_t kSteps = 12;
using EntryNames = std::vector<std::string>;

/// The mean loss of the last quarter of a run by hand: no doctor looks.
double trained_loss(const FaultyProgram& program, const amp::OptLevel& level, uint64_t seed) {
  torch::manual_seed(seed);
  const auto losses = program.losses(level.with(amp::InitializeOptions().verbosity(0)), kSteps);
  amp::reset();
  double sum = 0;
  for (auto loss = losses.end() - kSteps / 4; loss != losses.end(); ++loss) sum += *loss;
  return sum / (kSteps / 4);
}

/// As far above the worst seed as that is above the best; no fault changes anything there but the last bits.
double highest_loss_at_o0(const std::string& kind) {
  static std::map<std::string, double> known;
  const auto [found, is_new] = known.try_emplace(kind);
  if (!is_new) return found->second;
  std::vector<double> losses;
  for (uint64_t seed = 0; seed < 3; ++seed) losses.push_back(trained_loss(FaultyProgram{kind, nullptr, 0}, "O0", seed));
  const auto [lowest, highest] = std::minmax_element(losses.begin(), losses.end());
  return found->second = *highest + (*highest - *lowest);
}

amp::OptLevel without(const amp::OptLevel& level, const std::string& name) {
  auto modules = level.overrides().float32_modules().value_or(EntryNames());
  auto functions = level.overrides().float32_functions().value_or(EntryNames());
  modules.erase(std::remove(modules.begin(), modules.end(), name), modules.end());
  functions.erase(std::remove(functions.begin(), functions.end(), name), functions.end());
  return level.with(amp::InitializeOptions().float32_modules(modules).float32_functions(functions));
}

EntryNames kept_by(const amp::OptLevel& level) {
  auto names = level.overrides().float32_modules().value_or(EntryNames());
  for (const auto& name : level.overrides().float32_functions().value_or(EntryNames())) names.push_back(name);
  return names;
}

struct Repair : ::testing::TestWithParam<std::string> {
  static amp::DoctorOptions options() { return amp::DoctorOptions().steps(kSteps); }
  static bool is_faulty(const FaultyProgram& program, const amp::OptLevel& level) {
    if (amp::Doctor(level, program, options()).first_divergence()) return true;
    return !(trained_loss(program, level, 0) <= highest_loss_at_o0(program.kind));
  }
};

TEST_P(Repair, OfEachFaultTrainsLikeO0AndIsMinimal) {
  int turn = 0;
  for (const auto& fault : faults()) {
    const char* level = turn % 2 == 0 ? "O1" : "O2";
    const FaultyProgram program{GetParam(), fault.plant, turn++ % kPlaces};
    SCOPED_TRACE(GetParam() + " " + level + " " + fault.name + " at " + std::to_string(program.place));
    const auto found = amp::Doctor(level, program, options()).minimal_float32();
    EXPECT_FALSE(kept_by(found).empty());
    EXPECT_LE(trained_loss(program, amp::OptLevel::from_yaml_string(found.to_yaml()), 0), highest_loss_at_o0(program.kind))
        << found.to_yaml();
    for (const auto& name : kept_by(found)) EXPECT_TRUE(is_faulty(program, without(found, name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Repair, ::testing::ValuesIn(network_kinds()), [](const auto& test) { return test.param; });

TEST(RepairOfAHealthyNet, IsTheUnchangedLevel) {
  for (const auto& kind : network_kinds()) {
    const auto options = amp::DoctorOptions().steps(kSteps);
    EXPECT_EQ(amp::Doctor("O2", FaultyProgram{kind, nullptr, 0}, options).minimal_float32(), amp::OptLevel("O2")) << kind;
  }
}

// As with weights from a file: the reference's losses have no spread.
TEST(RepairOfAHealthyNet, IsTheUnchangedLevelIfSeedsChangeNothing) {
  for (const std::string level : {"O1", "O2", "O3", "O4", "O5", "O6"}) {
    for (const auto& kind : network_kinds()) {
      const auto fixed = [&](const amp::OptLevel& at_level, amp::DoctorRun& run) {
        torch::manual_seed(0);
        FaultyProgram{kind, nullptr, 0}(at_level, run);
      };
      const auto found = amp::Doctor(level, fixed, amp::DoctorOptions().steps(kSteps)).minimal_float32();
      EXPECT_EQ(found.to_yaml(), amp::OptLevel(level).to_yaml()) << kind;
    }
  }
}

void fit(torch::nn::Linear& model, const torch::Tensor& x, const torch::Tensor& y, const amp::OptLevel& level,
         amp::DoctorRun& run) {
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, level);
  while (run.next()) {
    opt.zero_grad();
    const auto loss = torch::mse_loss(net->forward(x), y);
    amp::scale_loss(loss, opt).backward();
    opt.step();
    run.loss(loss);
  }
}

// Weights that BF16 holds exactly.
void fit_exact_weights(const amp::OptLevel& level, amp::DoctorRun& run) {
  torch::nn::Linear model(4, 2);
  {
    const torch::NoGradGuard no_grad;
    model->weight.fill_(0.25);
    model->bias.fill_(0.5);
  }
  fit(model, torch::full({1, 4}, 1.1), torch::zeros({1, 2}), level, run);
}

// Outputs are off by less than what BF16 rounds them by. The forward pass before `initialize` runs in FP32 at all levels.
void fit_nearly_fitted(const amp::OptLevel& level, amp::DoctorRun& run) {
  torch::manual_seed(0);
  torch::nn::Linear model(16, 16);
  const auto x = torch::randn({4, 16});
  fit(model, x, model->forward(x).detach() * 1.001, level, run);
}

TEST(RepairOfAHealthyNet, IsTheUnchangedLevelForExactAndForNearlyFittedWeights) {
  for (const auto& program : {fit_exact_weights, fit_nearly_fitted}) {
    for (const std::string level : {"O1", "O2", "O4", "O5"}) {
      const auto options = amp::DoctorOptions().steps(kSteps);
      EXPECT_EQ(amp::Doctor(level, program, options).minimal_float32().to_yaml(), amp::OptLevel(level).to_yaml());
    }
  }
}

// The seeds reach 1, 2 and 3.
TEST(RepairOfAHealthyNet, IsTheUnchangedLevelUpToTheWorstSeedAndTheirSpread) {
  const auto with_loss = [](double at_level) {
    return [=](const amp::OptLevel& level, amp::DoctorRun& run) {
      torch::nn::Linear model(2, 2);
      auto net = amp::initialize(model, level);
      const double at_o0 = 1.0 + static_cast<double>(at::detail::getDefaultCPUGenerator().current_seed());
      while (run.next()) run.loss(level.name() == "O0" ? at_o0 : at_level);
    };
  };
  const auto options = amp::DoctorOptions().steps(4).seeds(3);
  EXPECT_EQ(amp::Doctor("O2", with_loss(5), options).minimal_float32(), amp::OptLevel("O2"));
  expect_error([&] { amp::Doctor("O2", with_loss(5.1), options).minimal_float32(); }, {"does not train even"});
}

/// Its losses are 1 at O0, with every seed, and those of `at_level` elsewhere.
amp::Doctor::Program with_losses(const std::vector<double>& at_level) {
  return [=](const amp::OptLevel& level, amp::DoctorRun& run) {
    torch::nn::Linear model(2, 2);
    auto net = amp::initialize(model, level);
    while (run.next()) run.loss(level.name() == "O0" ? 1.0 : at_level.at(static_cast<size_t>(run.step())));
  };
}

// Of the loss itself: a rounding in float16 is off by 2^-11, one in bfloat16 by 2^-8.
TEST(RepairOfAHealthyNet, IsTheUnchangedLevelUpToFourRoundings) {
  const auto options = amp::DoctorOptions().steps(1);
  for (const auto& [name, four_roundings] : {std::pair("O1", 0x1p-9), {"O2", 0x1p-9}, {"O4", 0x1p-6}, {"O5", 0x1p-6}}) {
    const std::string level = name;
    EXPECT_EQ(amp::Doctor(level, with_losses({1 + four_roundings}), options).minimal_float32(), amp::OptLevel(level));
    amp::Doctor beyond(level, with_losses({1 + 1.01 * four_roundings}), options);
    expect_error([&] { beyond.minimal_float32(); }, {"does not train even"});
  }
  // Of a level that casts nothing, those of float16.
  const auto uncast = amp::OptLevel("O3").with(amp::InitializeOptions().cast_model_type(false));
  EXPECT_EQ(amp::Doctor(uncast, with_losses({1 + 0x1p-9}), options).minimal_float32(), uncast);
  amp::Doctor beyond(uncast, with_losses({1 + 0x1p-8}), options);
  expect_error([&] { beyond.minimal_float32(); }, {"does not train even"});
}

// The mean of its last quarter.
TEST(RepairOfAHealthyNet, IsTheUnchangedLevelIfTheEndOfItsRunIsLowEnough) {
  const auto options = amp::DoctorOptions().steps(8);
  EXPECT_EQ(amp::Doctor("O2", with_losses({9, 9, 9, 9, 9, 9, 0.5, 1.5}), options).minimal_float32(), amp::OptLevel("O2"));
  amp::Doctor ends_too_high("O2", with_losses({0, 0, 0, 0, 0, 0, 0.5, 1.6}), options);
  expect_error([&] { ends_too_high.minimal_float32(); }, {"does not train even"});
}

TEST(RepairOfAHealthyNet, IsTheUnchangedLevelIfHalfOfItsStepsAreTaken) {
  const auto skipping = [](int64_t steps) {
    return [=](const amp::OptLevel& level, amp::DoctorRun& run) {
      torch::nn::Linear model(4, 4);
      torch::optim::SGD optimizer(model->parameters(), 0.01);
      auto [net, opt] = amp::initialize(model, optimizer, level);
      while (run.next()) {
        opt.zero_grad();
        const bool overflows = level.name() != "O0" && run.step() >= 1 && run.step() <= steps;
        const auto loss = net->forward(torch::ones({1, 4})).mean() * (overflows ? INFINITY : 1.0);
        amp::scale_loss(loss, opt).backward();
        opt.step();
        run.loss(1.0);
      }
    };
  };
  const auto options = amp::DoctorOptions().steps(8);
  EXPECT_EQ(amp::Doctor("O2", skipping(4), options).minimal_float32(), amp::OptLevel("O2"));
  expect_error([&] { amp::Doctor("O2", skipping(5), options).minimal_float32(); }, {"does not train even"});
}

TEST(RepairOutsideAmpsReach, IsAnError) {
  const auto by_hand = [](const torch::Tensor& x) { return x.mul(1e6).to(torch::kHalf).to(torch::kFloat).div(1e6); };
  const auto not_at_o0 = [&](const amp::OptLevel& level, amp::DoctorRun& run) {
    FaultyProgram{"mlp", level.name() == "O0" ? Plant() : by_hand, 1}(level, run);
  };
  expect_error([&] { amp::Doctor("O1", not_at_o0, amp::DoctorOptions().steps(4)).minimal_float32(); },
               {"with everything in FP32 that O1 can keep in FP32"});
}

/// A program that stops, as one does that runs out of memory, in one of the runs that the doctor announces with these words.
struct StopsOnce {
  const char* words;
  int which;
  int runs = 0;

  amp::DoctorOptions options() {
    return amp::DoctorOptions().steps(kSteps).on_run([this](const std::string& run) { is_such = run == words; });
  }
  amp::Doctor::Program around(const amp::Doctor::Program& program) {
    return [this, program](const amp::OptLevel& level, amp::DoctorRun& run) {
      if (is_such && ++runs == which) throw std::runtime_error("stopped");
      program(level, run);
    };
  }
  bool is_such = false;
};

// Losses of all seeds are alike, so that those of disturbed weights, the fourth run, are asked for.
TEST(DoctorOfAProgramThatStopsOnce, RequestsItsLossesAgain) {
  StopsOnce stops{"training at O0", 4};
  amp::Doctor doctor("O2", stops.around(fit_nearly_fitted), stops.options());
  EXPECT_THROW(doctor.minimal_float32(), std::runtime_error);
  EXPECT_EQ(stops.runs, 4);
  EXPECT_EQ(doctor.minimal_float32(), amp::OptLevel("O2"));
  EXPECT_EQ(stops.runs, 5);
}

// Its reference, and that from disturbed weights.
TEST(DoctorOfAProgramThatStopsOnce, ObservesItAgain) {
  const auto& fault = faults().front();
  const FaultyProgram program{"mlp", fault.plant, 1};
  const auto wanted = amp::Doctor("O1", program, amp::DoctorOptions().steps(kSteps)).first_divergence().place();
  EXPECT_NE(wanted, "none");
  for (const int which : {1, 2}) {
    StopsOnce stops{"observing O0", which};
    amp::Doctor doctor("O1", stops.around(program), stops.options());
    EXPECT_THROW(doctor.first_divergence(), std::runtime_error);
    EXPECT_EQ(doctor.first_divergence().place(), wanted) << which;
  }
}

// The losses of seeds have a spread, in which the level's lies: no weights are disturbed to find another.
TEST(RepairOfAHealthyNet, TrainsNoMoreReferencesThanItNeeds) {
  int runs = 0;
  const auto count = [&](const std::string& run) { runs += run == "training at O0"; };
  const auto options = amp::DoctorOptions().steps(kSteps).seeds(4).on_run(count);
  amp::Doctor("O5", FaultyProgram{"mlp", nullptr, 0}, options).minimal_float32();
  EXPECT_EQ(runs, 4);
}

// Of three seeds, the second: the first trains, and so does the level with it.
TEST(RepairWithoutAReference, IsAnErrorThatNamesTheSeed) {
  const auto lost_with_one_seed = [](const amp::OptLevel& level, amp::DoctorRun& run) {
    const bool is_lost = at::detail::getDefaultCPUGenerator().current_seed() == 1;
    const auto plant = [](const torch::Tensor& x) { return x * NAN; };
    FaultyProgram{"mlp", is_lost ? Plant(plant) : Plant(), 1}(level, run);
  };
  amp::Doctor doctor("O2", lost_with_one_seed, amp::DoctorOptions().steps(4));
  EXPECT_EQ(doctor.first_divergence().place(), "none");
  expect_error([&] { doctor.minimal_float32(); }, {"does not train at O0 itself (seed 1, step 0: the loss is nan)"});
}

}  // namespace
}  // namespace apex::test
