#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include "opt_levels/embedded.h"
#include "opt_levels/resolve.h"
#include "tests/opt_levels/errors.h"

namespace apex::opt_levels::testing {
namespace {

using c10::ScalarType;

struct PresetRow {
  const char* level;
  std::optional<ScalarType> cast_model_type;
  bool patch_torch_functions;
  std::optional<ScalarType> patch_functions_type;
  std::optional<bool> keep_batchnorm_fp32;
  std::optional<bool> master_weights;
  LossScale loss_scale;
  Float8Recipe fp8 = Float8Recipe::none;
};

void PrintTo(const PresetRow& row, std::ostream* out) { *out << row.level; }

// Apex's table of levels, then O1 and O2 in bfloat16, and the latter with FP8.
const PresetRow kTable[] = {
    {"O0", ScalarType::Float, false, std::nullopt, std::nullopt, false, 1.0},
    {"O1", std::nullopt, true, ScalarType::Half, std::nullopt, std::nullopt, "dynamic"},
    {"O2", ScalarType::Half, false, std::nullopt, true, true, "dynamic"},
    {"O3", ScalarType::Half, false, std::nullopt, false, false, 1.0},
    {"O4", std::nullopt, true, ScalarType::BFloat16, std::nullopt, std::nullopt, 1.0},
    {"O5", ScalarType::BFloat16, false, std::nullopt, true, true, 1.0},
    {"O6", ScalarType::BFloat16, false, std::nullopt, true, true, 1.0, Float8Recipe::current},
};

class Preset : public ::testing::TestWithParam<PresetRow> {};

TEST_P(Preset, HasThePropertiesOfTheTable_PROP_01) {
  const PresetRow& row = GetParam();
  for (const Properties& got : {OptLevel(row.level).preset(), resolve(row.level).properties}) {
    EXPECT_TRUE(got.enabled);
    EXPECT_EQ(got.opt_level, row.level);
    EXPECT_EQ(got.cast_model_type, row.cast_model_type);
    EXPECT_EQ(got.patch_torch_functions, row.patch_torch_functions);
    EXPECT_EQ(got.patch_functions_type, row.patch_functions_type);
    EXPECT_EQ(got.keep_batchnorm_fp32, row.keep_batchnorm_fp32);
    EXPECT_EQ(got.master_weights, row.master_weights);
    EXPECT_EQ(got.loss_scale, row.loss_scale);
  }
}

TEST_P(Preset, HasTheFp8OfTheTable) { EXPECT_EQ(resolve(GetParam().level).fp8, GetParam().fp8); }

TEST_P(Preset, IsDescribedInOneLine_PRINT_01) {
  const std::string text = OptLevel(GetParam().level).description();
  EXPECT_GT(text.size(), 10u);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_P(Preset, LeavesTheOtherSettingsAtApexDefaults_INIT_13) {
  const Settings settings = resolve(GetParam().level);
  EXPECT_EQ(settings.cast_model_outputs, std::nullopt);
  EXPECT_EQ(settings.num_losses, 1);
  EXPECT_EQ(settings.verbosity, 1);
  EXPECT_EQ(settings.min_loss_scale, std::nullopt);
  EXPECT_EQ(settings.max_loss_scale, 16777216.0);
  EXPECT_FALSE(settings.skip_nonfinite);
  EXPECT_FALSE(settings.allow_banned);
  EXPECT_EQ(settings.allow_tf32, std::nullopt);
  EXPECT_EQ(settings.cpu_16bit, Cpu16Bit::automatic);
  EXPECT_EQ(settings.fp8_gradients, Float8Format::e5m2);
  EXPECT_FALSE(settings.fp8_convolutions);
  EXPECT_EQ(settings.huge_pages, std::nullopt);
  EXPECT_EQ(settings.casts, CastLists::built_in());
  EXPECT_TRUE(settings.float32_modules.empty());
  EXPECT_TRUE(settings.float32_functions.empty());
  EXPECT_EQ(settings.bfloat16_modules, std::nullopt);
}

TEST_P(Preset, EmbeddedTextIsTheFile) {
  const std::map<std::string_view, std::string_view> embedded_texts{
      {"O0", embedded::O0}, {"O1", embedded::O1}, {"O2", embedded::O2}, {"O3", embedded::O3},
      {"O4", embedded::O4}, {"O5", embedded::O5}, {"O6", embedded::O6}};
  std::ifstream file(std::string(OPT_LEVELS_DIR "/") + GetParam().level + ".yaml");
  ASSERT_TRUE(file);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(embedded_texts.at(GetParam().level), text.str());
}

INSTANTIATE_TEST_SUITE_P(Levels, Preset, ::testing::ValuesIn(kTable), [](const auto& test) { return test.param.level; });

using Described = std::vector<std::pair<std::string, std::string>>;

TEST(Describe, GivesTheSevenPropertiesInApexOrder_PRINT_01) {
  EXPECT_EQ(describe(resolve("O2").properties), (Described{{"enabled", "true"},
                                                           {"opt_level", "O2"},
                                                           {"cast_model_type", "float16"},
                                                           {"patch_torch_functions", "false"},
                                                           {"keep_batchnorm_fp32", "true"},
                                                           {"master_weights", "true"},
                                                           {"loss_scale", "dynamic"}}));
}

TEST(Describe, WithoutALevelShowsBareProperties_INIT_02) {
  EXPECT_EQ(describe(Properties()), (Described{{"enabled", "false"},
                                               {"opt_level", "none"},
                                               {"cast_model_type", "none"},
                                               {"patch_torch_functions", "false"},
                                               {"keep_batchnorm_fp32", "none"},
                                               {"master_weights", "none"},
                                               {"loss_scale", "1.0"}}));
}

TEST(Describe, NamesFitTheColumnOfApexTable_PRINT_01) {
  for (const auto& [name, value] : describe(Properties())) EXPECT_LE(name.size(), 22u) << name;
}

class UnknownLevel : public ::testing::TestWithParam<const char*> {};

TEST_P(UnknownLevel, IsAnErrorThatListsTheLevelsAndHintsAtTheLetter_INIT_05_BUG_33) {
  const std::string name = GetParam();
  const std::string quoted = "'" + name + "'";
  for (const auto& result : {result_of([&] { resolve(name); }), result_of([&] { OptLevel::named(name); }),
                             result_of([&] { OptLevel(name).preset(); }), result_of([&] { OptLevel(name).description(); })}) {
    EXPECT_EQ(result.outcome, Outcome::runtime_error);
    for (const char* part : {quoted.c_str(), "O0, O1, O2, O3, O4, O5, O6", "letter O, not the digit zero"}) {
      expect_mentions(result.message, part);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Names, UnknownLevel, ::testing::Values("00", "01", "o2", "O7", "O", "", "O2 ", "mixed_float16"));

TEST(OptLevelName, IsCheckedOnlyWhenUsed_INIT_03) {
  const OptLevel level = "01";
  EXPECT_EQ(level.name(), "01");
  EXPECT_FALSE(resolve(level, InitializeOptions().enabled(false)).properties.enabled);
}

TEST(OptLevelName, FromANullPointerIsAnError) {
  const char* nothing = nullptr;
  expect_error(Outcome::value_error, {"null pointer"}, [&] { OptLevel level(nothing); });
}

TEST(OptLevelName, ComparesByNameAndOverrides) {
  EXPECT_EQ(OptLevel("O2"), OptLevel::named("O2"));
  EXPECT_EQ(OptLevel("O2"), OptLevel::from_yaml_string("opt_level: O2"));
  EXPECT_NE(OptLevel("O2"), OptLevel("O3"));
  EXPECT_NE(OptLevel("O2"), OptLevel::from_yaml_string("opt_level: O2\nloss_scale: 2"));
}

}  // namespace
}  // namespace apex::opt_levels::testing
