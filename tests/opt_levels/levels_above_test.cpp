// The order in which training climbs to levels with more FP32, and the overrides that are kept.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "opt_levels/opt_level.h"
#include "opt_levels/resolve.h"

namespace apex::opt_levels::testing {
namespace {

std::string names_above(const OptLevel& level) {
  std::string names;
  for (const auto& above : levels_above(level)) names += above.name() + " ";
  return names;
}

std::string names_above_in_bfloat16(const std::string& level) {
  return names_above(OptLevel::from_yaml_string("{opt_level: " + level + ", cast_model_type: bfloat16}"));
}

TEST(LevelsAbove, EndAtO0) {
  EXPECT_EQ(names_above("O3"), "O2 O1 O0 ");
  EXPECT_EQ(names_above("O2"), "O1 O0 ");
  EXPECT_EQ(names_above("O1"), "O0 ");
  EXPECT_EQ(names_above("O6"), "O5 O4 O0 ");
  EXPECT_EQ(names_above("O5"), "O4 O0 ");
  EXPECT_EQ(names_above("O4"), "O0 ");
  EXPECT_EQ(names_above("O0"), "");
}

TEST(LevelsAbove, AreBfloat16LevelsForABfloat16Model) {
  EXPECT_EQ(names_above_in_bfloat16("O3"), "O5 O4 O0 ");
  EXPECT_EQ(names_above_in_bfloat16("O2"), "O4 O0 ");
  EXPECT_EQ(names_above_in_bfloat16("O5"), "O4 O0 ");
  EXPECT_EQ(names_above_in_bfloat16("O6"), "O5 O4 O0 ");
}

TEST(LevelsAbove, AreTheLevelsOwnForOtherModelTypes) {
  for (const std::string type : {"float16", "float32", "false"}) {
    EXPECT_EQ(names_above(OptLevel::from_yaml_string("{opt_level: O3, cast_model_type: " + type + "}")), "O2 O1 O0 ") << type;
  }
}

TEST(LevelsAbove, BeginWithTheLevelWithoutFp8) {
  const auto names = [](const std::string& yaml) { return names_above(OptLevel::from_yaml_string(yaml)); };
  EXPECT_EQ(names("{opt_level: O5, fp8: mx}"), "O5 O4 O0 ");
  EXPECT_EQ(names("{opt_level: O5, fp8: delayed}"), "O5 O4 O0 ");
  EXPECT_EQ(names("{opt_level: O6, fp8: block128}"), "O5 O4 O0 ");
  EXPECT_EQ(names("{opt_level: O2, cast_model_type: bfloat16, fp8: mx}"), "O5 O4 O0 ");
  EXPECT_EQ(names("{opt_level: O3, cast_model_type: bfloat16, fp8: mx}"), "O5 O4 O0 ");
  EXPECT_EQ(names("{opt_level: O6, fp8: none}"), "O4 O0 ");
  EXPECT_EQ(names("{opt_level: O5, fp8: none}"), "O4 O0 ");
  EXPECT_EQ(names("{opt_level: O2, fp8: none}"), "O1 O0 ");
}

// With the option kept, O5 would compute in FP8 again.
TEST(LevelsAbove, HaveNoFp8) {
  for (const char* name : {"O5", "O6"}) {
    auto options = InitializeOptions().fp8("mx").fp8_gradients("e5m2").fp8_convolutions(true).verbosity(0);
    options.bfloat16_modules(std::vector<std::string>{"head"});
    const auto above = levels_above(OptLevel(name).with(options));
    ASSERT_EQ(above.size(), 3u) << name;
    for (const auto& each : above) {
      EXPECT_EQ(each.overrides(), InitializeOptions().verbosity(0)) << each.name();
      EXPECT_EQ(resolve(each).fp8, Float8Recipe::none) << each.name();
    }
  }
}

TEST(LevelsAbove, AreNoneIfAmpIsDisabled) {
  EXPECT_EQ(names_above(OptLevel::from_yaml_string("{opt_level: O2, enabled: false}")), "");
}

TEST(LevelsAbove, KeepOptionsThatApplyAtEveryLevel) {
  const auto level = OptLevel::from_yaml_string(
      "{opt_level: O2, num_losses: 2, verbosity: 0, allow_banned: true, allow_tf32: false, cpu_16bit: native, "
      "huge_pages: true, skip_nonfinite: true, float32_modules: [fc1], float32_functions: ['aten::exp'], loss_scale: 8, "
      "min_loss_scale: 2, "
      "max_loss_scale: 16, keep_batchnorm_fp32: false, master_weights: false, cast_model_outputs: float32}");
  const std::vector<std::string> modules{"fc1"}, functions{"aten::exp"};
  auto everywhere = InitializeOptions().num_losses(2).verbosity(0).allow_banned(true).allow_tf32(false);
  everywhere.cpu_16bit("native").huge_pages(true).skip_nonfinite(true).float32_modules(modules).float32_functions(functions);
  const auto above = levels_above(level);
  EXPECT_EQ(above.size(), 2u);
  for (const auto& each : above) EXPECT_EQ(each.overrides(), everywhere) << each.name();
}

}  // namespace
}  // namespace apex::opt_levels::testing
