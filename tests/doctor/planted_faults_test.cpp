// The doctor names planted faults.
#include <gtest/gtest.h>

#include <iostream>
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
      for (const char* level : {"O1", "O2", "O4", "O5"}) {
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

TEST(PlantedFaults, AreNamed) {
  const auto cases = planted_cases(15);
  ASSERT_GE(cases.size(), 100u);
  std::vector<std::string> misses;
  for (const auto& planted : cases) {
    const auto named = named_place(planted);
    if (named != planted.wanted()) misses.push_back(planted.name() + ": named " + named + ", planted " + planted.wanted());
  }
  for (const auto& miss : misses) std::cout << "missed: " << miss << "\n";
  std::cout << cases.size() - misses.size() << " of " << cases.size() << " planted faults named" << std::endl;
  EXPECT_LE(20 * misses.size(), cases.size());
}

struct HealthyNet : ::testing::TestWithParam<std::string> {};

TEST_P(HealthyNet, HasNoDivergenceAtAnyLevel) {
  for (const char* level : {"O1", "O2", "O3", "O4", "O5"}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      amp::Doctor doctor(level, FaultyProgram{GetParam(), nullptr, 0}, amp::DoctorOptions().steps(8).seed(seed));
      EXPECT_EQ(doctor.first_divergence().place(), "none") << level << " seed " << seed << ": " << doctor.first_divergence();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, HealthyNet, ::testing::ValuesIn(network_kinds()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace apex::test
