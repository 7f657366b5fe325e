// Random programs on the library and on a literal model of Apex's rules (SD, OPT, MW, APG, BWD, SL, SCALE), with the library's
// repairs. After every event the observable state of both is compared: all values must be equal, where signs of zeros do not
// count. A failure prints the shortest program that shows it, and its seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <sstream>

#include "tests/state_machine/comparison.h"
#include "tests/state_machine/literal_amp.h"

namespace apex::test {
namespace {

// Programs of a level. Of 62 faults that tools/test --mutation put where they pass, 500 programs of each level noticed 30, the
// last one at program 239. tools/test --all asks for 24,000.
unsigned programs_a_level() {
  const char* wanted = std::getenv("APEX_CPP_RANDOM_PROGRAMS");
  return wanted ? static_cast<unsigned>(std::stoul(wanted)) : 5000;
}

/// Leaves out events as long as the rest still fails.
std::vector<Event> shortest(const Config& config, std::vector<Event> events) {
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (size_t i = events.size(); i-- > 0;) {
      auto fewer = events;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      if (run(config, fewer).empty()) continue;
      events = std::move(fewer);
      shorter = true;
    }
  }
  return events;
}

std::string explanation(unsigned seed, const Config& config, const std::vector<Event>& events) {
  const auto few = shortest(config, events);
  return "seed " + std::to_string(seed) + ": " + listing(config, few) + run(config, few);
}

/// Hides load_state_dict's messages on standard output.
class QuietOutput {
 public:
  QuietOutput() : before_(std::cout.rdbuf(nothing_.rdbuf())) {}
  ~QuietOutput() { std::cout.rdbuf(before_); }

 private:
  std::ostringstream nothing_;
  std::streambuf* before_;
};

class StateMachine : public ::testing::TestWithParam<size_t> {};

TEST_P(StateMachine, FollowsTheLiteralModelOfApexOnRandomPrograms) {
  const unsigned programs = programs_a_level();
  ASSERT_GT(programs, 0u);
  for (unsigned i = 0; i < programs; ++i) {
    const unsigned seed = static_cast<unsigned>(GetParam()) * 24000 + i;  // no program twice
    Random random = std::mt19937(seed);
    const Config config = random_config(kModelledLevels[GetParam()], random);
    const auto events = random_events(config, random);
    std::string failure;
    {
      const QuietOutput quiet;
      if (!run(config, events).empty()) failure = explanation(seed, config, events);
    }
    ASSERT_TRUE(failure.empty()) << failure;
  }
}
INSTANTIATE_TEST_SUITE_P(Levels, StateMachine, ::testing::Range<size_t>(0, kModelledLevels.size()),
                         [](const auto& test) { return std::string(kModelledLevels[test.param]); });

// The model's own arithmetic, against values known from the formats.
TEST(LiteralModel, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(round_to_half(1.0 + 1.0 / 2048), 1.0f);
  EXPECT_EQ(round_to_half(1.0 + 3.0 / 2048), 1.0f + 2.0f / 1024);
  EXPECT_EQ(round_to_half(65504.0), 65504.0f);
  EXPECT_EQ(round_to_half(65519.0), 65504.0f);
  EXPECT_EQ(round_to_half(-65520.0), -INFINITY);
  EXPECT_EQ(round_to_half(std::ldexp(1.0, -24)), std::ldexp(1.0f, -24));
  EXPECT_EQ(round_to_half(std::ldexp(1.0, -25)), 0.0f);
  EXPECT_EQ(round_to_bfloat16(257.0), 256.0f);
  EXPECT_EQ(round_to_bfloat16(259.0), 260.0f);
  EXPECT_EQ(round_to_bfloat16(3.4e38), INFINITY);
}

}  // namespace
}  // namespace apex::test
