// The doctor diagnoses planted faults.
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <random>

#include "tests/doctor/faults.h"
#include "tests/doctor/networks.h"

namespace apex::test {
namespace {

struct Case {
  std::string kind, level;
  const Fault* fault;
  int place;

  std::string name() const { return kind + " " + level + " " + fault->name + " at " + std::to_string(place); }
  FaultyProgram program() const { return {kind, fault->plant, place}; }
  std::string wanted() const {
    return std::string(fault->backward ? "backward " : "forward ") + module_at(kind, place) + " " + fault->op;
  }
};

// Each fault in each kind of network at each level with which it breaks, at places that the seed draws.
std::vector<Case> planted_cases(uint64_t seed) {
  std::vector<Case> cases;
  std::mt19937 draw(static_cast<unsigned>(seed));
  for (const auto& kind : network_kinds()) {
    for (const auto& fault : faults()) {
      for (const char* level : {"O1", "O2", "O4", "O5", "O6"}) {
        const bool is_float16 = level[1] < '4';
        if (is_float16 || !fault.needs_float16) cases.push_back({kind, level, &fault, static_cast<int>(draw() % kPlaces)});
      }
    }
  }
  return cases;
}

std::string named_place(const Case& planted) {
  amp::Doctor doctor(planted.level, planted.program(), amp::DoctorOptions().steps(1));
  return doctor.first_divergence().place();
}

TEST(PlantedFaults, AreDiagnosed) {
  const auto cases = planted_cases(15);
  ASSERT_GE(cases.size(), 100u);
  std::map<std::string, std::vector<std::string>> misses;  // of each fault
  size_t named_cases = 0;
  for (const auto& planted : cases) {
    const auto named = named_place(planted);
    if (named == planted.wanted()) {
      ++named_cases;
    } else {
      misses[planted.fault->name].push_back(planted.name() + ": named " + named + ", planted " + planted.wanted());
    }
  }
  std::cout << named_cases << " of " << cases.size() << " planted faults named" << std::endl;
  for (const auto& [fault, missed] : misses) {
    EXPECT_TRUE(missed.empty()) << fault << " is missed: " << ::testing::PrintToString(missed);
  }
}

std::string first_divergence_text(const std::string& level, const amp::Doctor::Program& program) {
  return c10::str(
      amp::Doctor(amp::OptLevel::from_yaml_string(level), program, amp::DoctorOptions().steps(4)).first_divergence());
}

TEST(FaultsOfNoModule, AFixedLossScaleAtWhichGradientsOverflowIsDiagnosed) {
  const std::string text = first_divergence_text("{opt_level: O2, loss_scale: 1.0e+9}", FaultyProgram{"mlp", nullptr, 0});
  EXPECT_EQ(text.find("backward net.last aten::addmm (step 0, call 0): "), 0U) << text;
  const std::string end = " values are Inf or NaN; the loss scale is fixed at 1e+09: try a lower one, or \"dynamic\"";
  EXPECT_NE(text.find(end), std::string::npos) << text;
}

// FP16 has no number as small as Adam's eps, and the square of a small gradient is 0 there: 0 / 0.
void train_with_adam(const amp::OptLevel& level, amp::DoctorRun& run) {
  torch::nn::Linear model(4, 2);
  torch::optim::Adam optimizer(model->parameters());
  auto [net, opt] = amp::initialize(model, optimizer, level);
  while (run.next()) {
    opt.zero_grad();
    const auto loss = net->forward(torch::ones({2, 4})).square().mean() * 1e-3;
    amp::scale_loss(loss, opt).backward();
    opt.step();
    run.loss(loss.item<double>());
  }
}

TEST(FaultsOfNoModule, AWeightDestroyedByTheOptimizerIsDiagnosedWithTheRemedy) {
  EXPECT_EQ(first_divergence_text("{opt_level: O3}", train_with_adam),
            "optimizer model bias (before step 1): it has Inf or NaN, which an optimizer's step wrote. If the optimizer's "
            "state is FP16, take a level with master weights, such as O2, or a larger eps");
  EXPECT_EQ(first_divergence_text("{opt_level: O2}", train_with_adam), "none");
}

struct HealthyNet : ::testing::TestWithParam<std::string> {};

TEST_P(HealthyNet, HasNoDivergenceAtAnyLevel) {
  for (const char* level : {"O1", "O2", "O3", "O4", "O5", "O6"}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      amp::Doctor doctor(level, FaultyProgram{GetParam(), nullptr, 0}, amp::DoctorOptions().steps(8).seed(seed));
      EXPECT_EQ(doctor.first_divergence().place(), "none") << level << " seed " << seed << ": " << doctor.first_divergence();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, HealthyNet, ::testing::ValuesIn(network_kinds()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace apex::test
