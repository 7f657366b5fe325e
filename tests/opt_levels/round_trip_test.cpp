#include <gtest/gtest.h>

#include "opt_levels/resolve.h"
#include "tests/opt_levels/errors.h"

// `from_yaml_string(to_yaml(level))` is the level.
namespace apex::opt_levels::testing {
namespace {

void expect_same_settings(const Settings& a, const Settings& b) {
  EXPECT_EQ(a.properties, b.properties);
  EXPECT_EQ(a.cast_model_outputs, b.cast_model_outputs);
  EXPECT_EQ(a.num_losses, b.num_losses);
  EXPECT_EQ(a.verbosity, b.verbosity);
  EXPECT_EQ(a.min_loss_scale, b.min_loss_scale);
  EXPECT_EQ(a.max_loss_scale, b.max_loss_scale);
  EXPECT_EQ(a.skip_nonfinite, b.skip_nonfinite);
  EXPECT_EQ(a.allow_banned, b.allow_banned);
  EXPECT_EQ(a.allow_tf32, b.allow_tf32);
  EXPECT_EQ(a.cpu_16bit, b.cpu_16bit);
  EXPECT_EQ(a.fp8, b.fp8);
  EXPECT_EQ(a.fp8_gradients, b.fp8_gradients);
  EXPECT_EQ(a.fp8_convolutions, b.fp8_convolutions);
  EXPECT_EQ(a.huge_pages, b.huge_pages);
  EXPECT_EQ(a.casts, b.casts);
  EXPECT_EQ(a.float32_modules, b.float32_modules);
  EXPECT_EQ(a.float32_functions, b.float32_functions);
  EXPECT_EQ(a.bfloat16_modules, b.bfloat16_modules);
}

// The text is in the form in which it is written, so that it has to come back as it is.
void expect_round_trip(const std::string& text) {
  SCOPED_TRACE(text);
  const auto level = OptLevel::from_yaml_string(text);
  EXPECT_EQ(level.to_yaml(), text);
  const auto again = OptLevel::from_yaml_string(level.to_yaml());
  EXPECT_EQ(again, level);
  expect_same_settings(resolve(again), resolve(level));
}

struct RoundTripRow {
  const char* overrides;
  const char* levels;
};

const char* const kAll = "O0 O1 O2 O3 O4 O5 O6";
const char* const kCasting = "O0 O2 O3 O5 O6";
const char* const kBfloat16 = "O5 O6";
// Levels without FP8, which needs a model in bfloat16.
const char* const kAnyModel = "O0 O1 O2 O3 O4 O5";
const char* const kCastingAnyModel = "O0 O2 O3 O5";

const RoundTripRow kRoundTripRows[] = {
    {"", kAll},
    {"enabled: true\n", kAll},
    {"float32_modules:\n  - \"none\"\n  - \"None\"\n  - \"null\"\n  - \"~\"\n", kAll},
    {"enabled: false\n", kAll},
    {"cast_model_type: false\n", kAnyModel},
    {"cast_model_type: float32\n", kAnyModel},
    {"cast_model_type: float16\n", kCastingAnyModel},
    {"cast_model_type: bfloat16\n", kCasting},
    {"patch_torch_functions: false\n", kAll},
    {"patch_torch_functions: true\n", "O1 O4"},
    {"keep_batchnorm_fp32: true\n", kCasting},
    {"keep_batchnorm_fp32: false\n", kCasting},
    {"master_weights: true\n", kCasting},
    {"master_weights: false\n", kCasting},
    {"loss_scale: dynamic\n", kAll},
    {"loss_scale: 128.0\n", kAll},
    {"loss_scale: 0.1\n", kAll},
    {"loss_scale: 1e+30\n", kAll},
    {"cast_model_outputs: bfloat16\n", kAll},
    {"num_losses: 3\n", kAll},
    {"verbosity: 0\n", kAll},
    {"min_loss_scale: 0.3333333333333333\n", kAll},
    {"max_loss_scale: 65536.0\n", kAll},
    {"skip_nonfinite: true\n", kAll},
    {"allow_banned: true\n", kAll},
    {"allow_tf32: false\n", kAll},
    {"cpu_16bit: auto\n", kAll},
    {"cpu_16bit: native\n", kAll},
    {"cpu_16bit: float32\n", kAll},
    {"fp8: none\n", kAll},
    {"cast_model_type: false\nfp8: none\n", kAll},
    {"cast_model_type: float16\nfp8: none\n", kCasting},
    {"fp8: current\n", kBfloat16},
    {"fp8: delayed\n", kBfloat16},
    {"fp8: block128\n", kBfloat16},
    {"fp8: mx\n", kBfloat16},
    {"cast_model_type: bfloat16\nfp8: mx\n", kCasting},
    {"fp8_gradients: e4m3\n", kAll},
    {"fp8_gradients: e5m2\n", kAll},
    {"fp8_convolutions: true\n", kAll},
    {"fp8_convolutions: false\n", kAll},
    {"fp8: delayed\nfp8_gradients: e4m3\nfp8_convolutions: true\n", kBfloat16},
    {"huge_pages: true\n", kAll},
    {"huge_pages: false\n", kAll},
    {"casts:\n  base: none\n", kAll},
    {"casts:\n  base: none\n  casts:\n    half:\n      - a::b\n  match:\n    float32:\n      - a::b.c\n", kAll},
    {"float32_modules:\n  - encoder.0\n  - head\n", kAll},
    {"float32_functions:\n  - aten::exp\n  - aten::add.Tensor\n", kAll},
    {"bfloat16_modules:\n  - embedding\n  - decoder.0\n", kAll},
    {"float32_modules: []\nfloat32_functions: []\nbfloat16_modules: []\n", kAll},
    {"cast_model_type: false\nloss_scale: 2.0\nnum_losses: 2\nverbosity: 2\nmax_loss_scale: 4.0\n", kAnyModel},
};

class RoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, GivesTheSameTextLevelAndSettings) {
  int tried = 0;
  for (const RoundTripRow& row : kRoundTripRows) {
    if (std::string(row.levels).find(GetParam()) == std::string::npos) continue;
    expect_round_trip(std::string("opt_level: ") + GetParam() + "\n" + row.overrides);
    ++tried;
  }
  EXPECT_GT(tried, 15);
}

INSTANTIATE_TEST_SUITE_P(Levels, RoundTrip, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return test.param; });

TEST(RoundTripOfANamedLevel, NeedsNoOverrides) {
  EXPECT_EQ(OptLevel::from_yaml_string(OptLevel("O5").to_yaml()), OptLevel("O5"));
}

TEST(LevelWithOptions, ReplacesItsOptionsAndKeepsTheRest) {
  const auto level = OptLevel::from_yaml_string("opt_level: O2\nloss_scale: 2.0\nverbosity: 0\n");
  const auto changed = level.with(InitializeOptions().loss_scale(8).float32_modules(std::vector<std::string>{"head"}));
  EXPECT_EQ(changed.to_yaml(), "opt_level: O2\nloss_scale: 8.0\nverbosity: 0\nfloat32_modules:\n  - head\n");
  EXPECT_EQ(changed.place_of("loss_scale"), "");
  EXPECT_EQ(changed.place_of("verbosity"), "<string>:3:12");
}

TEST(RoundTripOfADisabledLevel, KeepsAnyName_INIT_03) {
  for (const char* name : {"01", "a: b", "# none", "none", "'", "two\nlines"}) {
    const std::string written = OptLevel(name).to_yaml() + "enabled: false\n";
    EXPECT_EQ(OptLevel::from_yaml_string(written).name(), name) << written;
  }
}

}  // namespace
}  // namespace apex::opt_levels::testing
