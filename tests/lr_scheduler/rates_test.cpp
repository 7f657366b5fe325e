// The rates of every scheduler against those that record.py recorded from Python's torch.optim.lr_scheduler, bit for bit.
#include <apex_cpp/lr_scheduler.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include "tests/lr_scheduler/optimizers.h"

namespace apex::test {
namespace {

using namespace lr_scheduler;
using torch::optim::Optimizer;
using Made = std::shared_ptr<LRScheduler>;
using Maker = std::function<Made(Optimizer&)>;

template <class Scheduler, class... Arguments>
Maker maker(Arguments... arguments) {
  return [=](Optimizer& opt) { return std::make_shared<Scheduler>(opt, arguments...); };
}

Maker sequence(const std::vector<Maker>& makers, const std::vector<int64_t>& milestones) {
  return [=](Optimizer& opt) {
    Schedulers parts;
    for (const auto& make : makers) parts.push_back(make(opt));
    return std::make_shared<SequentialLR>(opt, parts, milestones);
  };
}

Maker chained(const std::vector<Maker>& makers) {
  return [=](Optimizer& opt) {
    Schedulers parts;
    for (const auto& make : makers) parts.push_back(make(opt));
    return std::make_shared<ChainedScheduler>(parts);
  };
}

LambdaLR::Lambda power(double base) {
  return [base](int64_t epoch) { return std::pow(base, static_cast<double>(epoch)); };
}

std::vector<LambdaLR::Lambda> each_lambda() {
  return {power(0.999), [](int64_t epoch) { return 1 / (1 + static_cast<double>(epoch)); }, [](int64_t) { return 1.0; }};
}

OneCycleLROptions cycle(double max_lr, int64_t steps) { return OneCycleLROptions(max_lr).total_steps(steps); }

/// record.py has the same cases.
const std::map<std::string, Maker>& cases() {
  const auto warmup = maker<LinearLR>(0.01, 1.0, 100);
  const auto lists = OneCycleLROptions({0.4, 0.2, 0.1}).epochs(10).steps_per_epoch(300).base_momentum({0.8, 0.7, 0.6});
  static const std::map<std::string, Maker> all{
      {"lambda", maker<LambdaLR>(power(0.95))},
      {"lambda_each", maker<LambdaLR>(each_lambda())},
      {"step", maker<StepLR>(30, 0.97)},
      {"multi_step", maker<MultiStepLR>(std::vector<int64_t>{5, 20, 20, 1500}, 0.3)},
      {"constant", maker<ConstantLR>(0.3, 40)},
      {"exponential", maker<ExponentialLR>(0.9995)},
      {"linear_default", maker<LinearLR>()},
      {"linear_up", maker<LinearLR>(1e-3, 1.0, 1000)},
      {"linear_down", maker<LinearLR>(1.0, 0.0, 2500)},
      {"polynomial", maker<PolynomialLR>(2500, 0.9)},
      {"polynomial_square", maker<PolynomialLR>(1000, 2.0)},
      {"cosine", maker<CosineAnnealingLR>(3000, 1e-5)},
      {"cosine_waves", maker<CosineAnnealingLR>(7, 1e-5)},
      {"warmup_cosine", sequence({warmup, maker<CosineAnnealingLR>(2900)}, {100})},
      {"warmup_one_cycle", sequence({maker<LinearLR>(0.5, 1.0, 100), maker<OneCycleLR>(cycle(0.2, 2900))}, {100})},
      {"three_parts",
       sequence({maker<ConstantLR>(0.1, 20), maker<ExponentialLR>(0.999), maker<PolynomialLR>(1000, 2.0)}, {20, 1500})},
      {"restarts", sequence({maker<StepLR>(3, 0.5), maker<MultiStepLR>(std::vector<int64_t>{2, 4}, 0.5),
                             maker<ConstantLR>(0.2, 5), maker<LambdaLR>(power(0.9))},
                            {10, 98, 101})},
      {"chained", chained({maker<ConstantLR>(0.1, 20), maker<ExponentialLR>(0.999)})},
      {"chained_sequence", chained({sequence({warmup, maker<CosineAnnealingLR>(2900)}, {100}), maker<StepLR>(700, 0.3)})},
      {"by_hand_cosine", maker<CosineAnnealingLR>(2000, 1e-5)},
      {"by_hand_linear", maker<LinearLR>(0.1, 1.0, 700)},
      {"one_cycle", maker<OneCycleLR>(cycle(0.4, 3000))},
      {"one_cycle_epochs", maker<OneCycleLR>(OneCycleLROptions(lists).final_div_factor(100.0))},
      {"one_cycle_adam",
       maker<OneCycleLR>(cycle(0.4, 3000).pct_start(0.4).anneal_strategy("linear").three_phase(true).div_factor(10.0))},
      {"one_cycle_rates_only", maker<OneCycleLR>(cycle(0.4, 3000).cycle_momentum(false))},
  };
  return all;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::unique_ptr<Optimizer> optimizer_of(const std::string& name) {
  const std::vector<double> rates{0.1, 0.03, 1e-4};
  if (ends_with(name, "adam")) return with_rates<torch::optim::Adam>(rates, torch::optim::AdamOptions());
  return with_rates<torch::optim::SGD>(rates, torch::optim::SGDOptions(0.5).momentum(0.9));
}

double momentum_of(const torch::optim::OptimizerOptions& options) {
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options)) return std::get<0>(adam->betas());
  return dynamic_cast<const torch::optim::SGDOptions&>(options).momentum();
}

std::vector<double> values_of(const std::string& name, Optimizer& opt) {
  auto values = rates_of(opt);
  if (name.find("one_cycle") == std::string::npos) return values;
  for (const auto& group : opt.param_groups()) values.push_back(momentum_of(group.options()));
  return values;
}

void edit_by_hand(int64_t step, Optimizer& opt) {
  for (auto& group : opt.param_groups()) {
    if (step == 97) group.options().set_lr(group.options().get_lr() * 0.5);
  }
  if (step == 500) opt.param_groups()[1].options().set_lr(0.02);
}

uint64_t checksum_of(const std::vector<double>& values, uint64_t before) {
  for (const double value : values) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    before = (before ^ bits) * 1099511628211u;
  }
  return before;
}

std::vector<double> numbers_in(const std::string& text) {
  std::vector<double> numbers;
  std::istringstream words(text);
  for (std::string word; words >> word;) numbers.push_back(std::strtod(word.c_str(), nullptr));
  return numbers;
}

/// Steps a scheduler as record.py does, and compares every recorded value.
void play(const std::string& name, const nlohmann::json& recorded, int64_t steps) {
  auto opt = optimizer_of(name);
  const auto scheduler = cases().at(name)(*opt);
  torch::optim::LRScheduler& as_of_libtorch = *scheduler;
  uint64_t checksum = 14695981039346656037u;
  for (int64_t step = 0; step <= steps; ++step) {
    if (step > 0) {
      if (name.rfind("by_hand", 0) == 0) edit_by_hand(step, *opt);
      as_of_libtorch.step();
    }
    ASSERT_EQ(scheduler->last_epoch(), step);
    ASSERT_EQ(scheduler->get_last_lr(), rates_of(*opt));
    const auto values = values_of(name, *opt);
    checksum = checksum_of(values, checksum);
    const auto shown = recorded["values"].find(std::to_string(step));
    if (shown == recorded["values"].end()) continue;
    ASSERT_EQ(values, numbers_in(*shown)) << "step " << step;
  }
  EXPECT_EQ(std::to_string(checksum), recorded["checksum"]);
}

nlohmann::json recording() { return nlohmann::json::parse(std::ifstream(RECORDED_RATES)); }

TEST(Rates, HaveTheBitsOfPython) {
  const auto file = recording();
  for (const auto& [name, recorded] : file["cases"].items()) {
    SCOPED_TRACE(name);
    ASSERT_EQ(cases().count(name), 1u) << "recorded, but not made here";
    play(name, recorded, file["steps"]);
  }
}

TEST(Rates, OfEveryCaseAreRecorded) {
  const auto file = recording();
  for (const auto& [name, make] : cases()) EXPECT_TRUE(file["cases"].contains(name)) << name;
}

}  // namespace
}  // namespace apex::test
