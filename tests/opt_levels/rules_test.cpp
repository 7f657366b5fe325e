#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "opt_levels/resolve.h"
#include "tests/opt_levels/errors.h"

// Which overrides each level takes (PROP-10 to PROP-16), and in which order they are looked at (INIT-08).
namespace apex::opt_levels::testing {
namespace {

using c10::ScalarType;
using Options = InitializeOptions;
using Expect = std::function<void(const Properties&)>;

struct Override {
  const char* name;
  Options options;
  const char* yaml;
  const char* message;       // how errors name it
  const char* forbidden_by;  // the levels, in one string
  Expect expect;
};

const char* const kPatching = "O1 O4";
const char* const kOthers = "O0 O2 O3 O5 O6";

const Override kOverrides[] = {
    {"half_model_PROP_10", Options().cast_model_type(ScalarType::Half), "cast_model_type: half", "cast_model_type=float16",
     kPatching, [](const Properties& p) { EXPECT_EQ(p.cast_model_type, ScalarType::Half); }},
    {"bfloat16_model_PROP_10", Options().cast_model_type(ScalarType::BFloat16), "cast_model_type: bfloat16",
     "cast_model_type=bfloat16", kPatching, [](const Properties& p) { EXPECT_EQ(p.cast_model_type, ScalarType::BFloat16); }},
    {"float_model_PROP_10", Options().cast_model_type(ScalarType::Float), "cast_model_type: float32", "", "",
     [](const Properties& p) { EXPECT_EQ(p.cast_model_type, ScalarType::Float); }},
    {"model_left_alone_PROP_11", Options().cast_model_type(false), "cast_model_type: false", "", "",
     [](const Properties& p) { EXPECT_EQ(p.cast_model_type, std::nullopt); }},
    {"patching_PROP_12", Options().patch_torch_functions(true), "patch_torch_functions: true", "patch_torch_functions=true",
     kOthers, [](const Properties& p) { EXPECT_TRUE(p.patch_torch_functions); }},
    {"no_patching_PROP_12", Options().patch_torch_functions(false), "patch_torch_functions: false", "", "",
     [](const Properties& p) { EXPECT_FALSE(p.patch_torch_functions); }},
    {"batchnorm_kept_PROP_13", Options().keep_batchnorm_fp32(true), "keep_batchnorm_fp32: true", "keep_batchnorm_fp32=true",
     kPatching, [](const Properties& p) { EXPECT_EQ(p.keep_batchnorm_fp32, true); }},
    {"batchnorm_cast_PROP_13", Options().keep_batchnorm_fp32(false), "keep_batchnorm_fp32: false", "keep_batchnorm_fp32=false",
     kPatching, [](const Properties& p) { EXPECT_EQ(p.keep_batchnorm_fp32, false); }},
    {"batchnorm_kept_as_string_PROP_14", Options().keep_batchnorm_fp32("True"), "keep_batchnorm_fp32: 'True'",
     "keep_batchnorm_fp32=true", kPatching, [](const Properties& p) { EXPECT_EQ(p.keep_batchnorm_fp32, true); }},
    {"batchnorm_cast_as_string_PROP_14", Options().keep_batchnorm_fp32("False"), "keep_batchnorm_fp32: \"False\"",
     "keep_batchnorm_fp32=false", kPatching, [](const Properties& p) { EXPECT_EQ(p.keep_batchnorm_fp32, false); }},
    {"masters_PROP_15", Options().master_weights(true), "master_weights: true", "master_weights=true", kPatching,
     [](const Properties& p) { EXPECT_EQ(p.master_weights, true); }},
    {"no_masters_PROP_15", Options().master_weights(false), "master_weights: false", "master_weights=false", kPatching,
     [](const Properties& p) { EXPECT_EQ(p.master_weights, false); }},
    {"static_scale_PROP_16", Options().loss_scale(128), "loss_scale: 128", "", "",
     [](const Properties& p) { EXPECT_EQ(p.loss_scale, LossScale(128.0)); }},
    {"static_scale_as_string_PROP_16", Options().loss_scale("128.0"), "loss_scale: '128.0'", "", "",
     [](const Properties& p) { EXPECT_EQ(p.loss_scale, LossScale(128.0)); }},
    {"dynamic_scale_PROP_16", Options().loss_scale("dynamic"), "loss_scale: dynamic", "", "",
     [](const Properties& p) { EXPECT_TRUE(p.loss_scale.dynamic); }},
};

void PrintTo(const Override& row, std::ostream* out) { *out << row.name; }

// One test per override, each over all levels: a process per cell of the grid would cost more than the grid.
class Overriding : public ::testing::TestWithParam<Override> {
 protected:
  // `settings_of(level)` is applied, or refused with a message that begins with `place`.
  template <class SettingsOf>
  void expect_rule(const std::string& place, SettingsOf&& settings_of) const {
    for (const std::string level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
      if (level == "O6" && is_model_type_without_fp8()) continue;
      SCOPED_TRACE(level);
      const bool is_forbidden = std::string(GetParam().forbidden_by).find(level) != std::string::npos;
      Settings settings;
      const CallResult result = result_of([&] { settings = settings_of(level); });
      EXPECT_EQ(result.outcome, is_forbidden ? Outcome::runtime_error : Outcome::accepted) << result.message;
      if (is_forbidden) {
        EXPECT_EQ(result.message.find(place + GetParam().message + " is not allowed with " + level), 0u) << result.message;
      } else {
        GetParam().expect(settings.properties);
        expect_rest_of(OptLevel(level).preset(), settings.properties);
      }
    }
  }

 private:
  // O6 forbids these because of its FP8: the tests of Fp8 have the message.
  static bool is_model_type_without_fp8() {
    const std::string yaml = GetParam().yaml;
    return yaml.find("cast_model_type") == 0 && yaml != "cast_model_type: bfloat16";
  }

  void expect_rest_of(const Properties& preset, const Properties& got) const {
    const auto before = describe(preset);
    const auto after = describe(got);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const bool is_overridden = std::string(GetParam().yaml).find(before[i].first + ":") == 0;
      if (!is_overridden) {
        EXPECT_EQ(after[i], before[i]);
      }
    }
  }
};

TEST_P(Overriding, FromOptionsIsAppliedOrAnError) {
  expect_rule("", [](const std::string& level) { return resolve(level, GetParam().options); });
}

TEST_P(Overriding, FromYamlIsAppliedOrAnErrorWithItsPlace) {
  const std::string yaml = GetParam().yaml;
  const std::string place = "my.yaml:2:" + std::to_string(yaml.find(' ') + 2) + ": ";
  expect_rule(place, [&](const std::string& level) {
    return resolve(OptLevel::from_yaml_string("opt_level: " + level + "\n" + yaml, "my.yaml"));
  });
}

INSTANTIATE_TEST_SUITE_P(Grid, Overriding, ::testing::ValuesIn(kOverrides), [](const auto& test) { return test.param.name; });

TEST(OverrideOrder, TheFirstIllegalPropertyIsNamed_INIT_08) {
  Options options = Options().loss_scale(-1.0).master_weights(true).keep_batchnorm_fp32(true).cast_model_type(ScalarType::Half);
  for (const char* key : {"cast_model_type", "keep_batchnorm_fp32", "master_weights", "loss_scale"}) {
    const CallResult result = result_of([&] { resolve("O1", options); });
    EXPECT_EQ(result.message.find(key), 0u) << result.message;
    if (key == std::string("cast_model_type")) options.cast_model_type(std::nullopt);
    if (key == std::string("keep_batchnorm_fp32")) options.keep_batchnorm_fp32(std::nullopt);
    if (key == std::string("master_weights")) options.master_weights(std::nullopt);
  }
}

TEST(OverrideOrder, PatchTorchFunctionsIsCheckedBeforeTheLossScale_INIT_08) {
  expect_error(Outcome::runtime_error, {"patch_torch_functions=true"},
               [] { resolve("O2", Options().loss_scale(0).patch_torch_functions(true)); });
}

TEST(OverrideOrder, LevelThenBoundsThenPropertiesAreChecked_INIT_05_INIT_07) {
  const Options options = Options().min_loss_scale(-1).master_weights(true);
  expect_error(Outcome::runtime_error, {"unknown opt_level"}, [&] { resolve("01", options); });
  expect_error(Outcome::value_error, {"min_loss_scale=-1.0"}, [&] { resolve("O1", options); });
}

TEST(Fp8, IsAnErrorAtLevelsWhoseModelIsNotInBfloat16) {
  const std::vector<std::pair<const char*, std::string>> rows{
      {"O0", "float32"}, {"O1", "none"}, {"O2", "float16"}, {"O3", "float16"}, {"O4", "none"}};
  for (const auto& [level, type] : rows) {
    for (const std::string recipe : {"current", "delayed", "block128", "mx"}) {
      const CallResult result = result_of([&, level = level] { resolve(level, Options().fp8(recipe)); });
      EXPECT_EQ(result.outcome, Outcome::runtime_error) << level;
      EXPECT_EQ(result.message, "fp8=" + recipe + " is not allowed with cast_model_type=" + type +
                                    ": only products of a model in bfloat16 run in FP8. Use O6, or O5 with fp8, or give "
                                    "cast_model_type bfloat16; fp8 none switches FP8 off.");
    }
  }
}

TEST(Fp8, IsAllowedForAnyModelInBfloat16) {
  for (const char* level : {"O0", "O2", "O3", "O5", "O6"}) {
    const Settings settings = resolve(level, Options().cast_model_type(ScalarType::BFloat16).fp8("mx"));
    EXPECT_EQ(settings.fp8, Float8Recipe::mx) << level;
    EXPECT_EQ(settings.properties.opt_level, level);
  }
  for (const Float8Recipe recipe : {Float8Recipe::current, Float8Recipe::delayed, Float8Recipe::block128, Float8Recipe::mx}) {
    EXPECT_EQ(resolve("O5", Options().fp8(recipe)).fp8, recipe);
  }
}

TEST(Fp8, OfTheLevelForbidsOtherModelTypes) {
  const std::vector<std::pair<Options, const char*>> rows{{Options().cast_model_type(ScalarType::Half), "float16"},
                                                          {Options().cast_model_type(ScalarType::Float), "float32"},
                                                          {Options().cast_model_type(false), "none"}};
  for (auto [options, type] : rows) {
    expect_error(Outcome::runtime_error, {"fp8=current is not allowed with cast_model_type=", type},
                 [&, &options = options] { resolve("O6", options); });
    EXPECT_EQ(resolve("O6", options.fp8("none")).fp8, Float8Recipe::none) << type;
  }
}

TEST(Fp8, OfYamlIsNamedWithItsPlaceInErrors) {
  expect_error(Outcome::runtime_error, {"my.yaml:2:6: fp8=mx is not allowed with cast_model_type=float16: "},
               [] { OptLevel::from_yaml_string("opt_level: O2\nfp8: mx", "my.yaml"); });
  expect_error(Outcome::runtime_error, {"fp8=current is not allowed with my.yaml:2:18: cast_model_type=float16: "},
               [] { OptLevel::from_yaml_string("opt_level: O6\ncast_model_type: half", "my.yaml"); });
}

TEST(Fp8, DecidesTheFormatOfGradientsUnlessItIsGiven) {
  const std::vector<std::pair<Float8Recipe, Float8Format>> rows{{Float8Recipe::current, Float8Format::e5m2},
                                                                {Float8Recipe::delayed, Float8Format::e5m2},
                                                                {Float8Recipe::block128, Float8Format::e4m3},
                                                                {Float8Recipe::mx, Float8Format::e4m3}};
  for (const auto& [recipe, format] : rows) {
    EXPECT_EQ(resolve("O6", Options().fp8(recipe)).fp8_gradients, format);
    for (const Float8Format given : {Float8Format::e4m3, Float8Format::e5m2}) {
      EXPECT_EQ(resolve("O6", Options().fp8(recipe).fp8_gradients(given)).fp8_gradients, given);
    }
  }
}

TEST(Fp8, OfConvolutionsIsOffUnlessItIsGiven) {
  for (const char* recipe : {"current", "delayed", "block128", "mx"}) {
    EXPECT_FALSE(resolve("O6", Options().fp8(recipe)).fp8_convolutions) << recipe;
    for (const bool given : {true, false}) {
      EXPECT_EQ(resolve("O6", Options().fp8(recipe).fp8_convolutions(given)).fp8_convolutions, given) << recipe;
    }
  }
}

// As bounds of a loss scale that is not dynamic.
TEST(Fp8, OptionsWithoutFp8AreAccepted) {
  const std::vector<std::string> modules{"head"};
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5"}) {
    const Settings settings = resolve(level, Options().fp8_gradients("e4m3").fp8_convolutions(true).bfloat16_modules(modules));
    EXPECT_EQ(settings.fp8, Float8Recipe::none) << level;
    EXPECT_EQ(settings.bfloat16_modules, modules) << level;
  }
}

TEST(Fp8, IsNoneIfAmpIsDisabled) {
  const Settings settings = resolve("O6", Options().enabled(false).fp8("mx").fp8_gradients("e4m3").fp8_convolutions(true));
  EXPECT_EQ(settings.fp8, Float8Recipe::none);
  EXPECT_EQ(settings.fp8_gradients, Settings().fp8_gradients);
  EXPECT_FALSE(settings.fp8_convolutions);
}

TEST(Disabled, HasBarePropertiesAndChecksNothingElse_INIT_03) {
  const Options nonsense = Options().enabled(false).num_losses(0).loss_scale(-1).min_loss_scale(0).master_weights(true);
  const Settings settings = resolve("no such level", nonsense);
  EXPECT_EQ(settings.properties, Properties());
  EXPECT_EQ(settings.num_losses, 1);
  EXPECT_EQ(settings.min_loss_scale, std::nullopt);
}

TEST(Disabled, StillStoresTheVerbosity_INIT_02) {
  EXPECT_EQ(resolve("O2", Options().enabled(false).verbosity(0)).verbosity, 0);
}

TEST(Disabled, ByYamlAlsoSkipsTheLevelAndItsRules_INIT_03) {
  const auto level = OptLevel::from_yaml_string("opt_level: 01\nenabled: false\nmaster_weights: true\nnum_losses: 0");
  EXPECT_EQ(resolve(level).properties, Properties());
}

}  // namespace
}  // namespace apex::opt_levels::testing
