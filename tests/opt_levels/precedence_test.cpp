#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "opt_levels/resolve.h"
#include "tests/opt_levels/errors.h"

// InitializeOptions before YAML, YAML before the preset.
namespace apex::opt_levels::testing {
namespace {

using c10::ScalarType;
using Options = InitializeOptions;
using Paths = std::vector<std::string>;

const char* const kYaml = R"(opt_level: O2
enabled: true
cast_model_type: bfloat16
patch_torch_functions: false
keep_batchnorm_fp32: false
master_weights: false
loss_scale: 64
cast_model_outputs: float16
num_losses: 2
verbosity: 0
min_loss_scale: 2
max_loss_scale: 512
skip_nonfinite: true
allow_banned: true
allow_tf32: true
cpu_16bit: float32
fp8: block128
fp8_gradients: e5m2
fp8_convolutions: true
huge_pages: true
float32_modules: [fc1]
float32_functions: ['aten::exp']
bfloat16_modules: [head]
)";

TEST(Precedence, YamlOverridesThePreset) {
  const Settings settings = resolve(OptLevel::from_yaml_string(kYaml));
  EXPECT_TRUE(settings.properties.enabled);
  EXPECT_EQ(settings.properties.opt_level, "O2");
  EXPECT_EQ(settings.properties.cast_model_type, ScalarType::BFloat16);
  EXPECT_FALSE(settings.properties.patch_torch_functions);
  EXPECT_EQ(settings.properties.keep_batchnorm_fp32, false);
  EXPECT_EQ(settings.properties.master_weights, false);
  EXPECT_EQ(settings.properties.loss_scale, LossScale(64));
  EXPECT_EQ(settings.cast_model_outputs, ScalarType::Half);
  EXPECT_EQ(settings.num_losses, 2);
  EXPECT_EQ(settings.verbosity, 0);
  EXPECT_EQ(settings.min_loss_scale, 2.0);
  EXPECT_EQ(settings.max_loss_scale, 512.0);
  EXPECT_TRUE(settings.skip_nonfinite);
  EXPECT_TRUE(settings.allow_banned);
  EXPECT_EQ(settings.allow_tf32, true);
  EXPECT_EQ(settings.cpu_16bit, Cpu16Bit::float32);
  EXPECT_EQ(settings.fp8, Float8Recipe::block128);
  EXPECT_EQ(settings.fp8_gradients, Float8Format::e5m2);
  EXPECT_TRUE(settings.fp8_convolutions);
  EXPECT_EQ(settings.huge_pages, true);
  EXPECT_EQ(settings.float32_modules, Paths{"fc1"});
  EXPECT_EQ(settings.float32_functions, Paths{"aten::exp"});
  EXPECT_EQ(settings.bfloat16_modules, Paths{"head"});
}

TEST(Precedence, OptionsOverrideYaml) {
  const Options options = Options()
                              .cast_model_type(ScalarType::Half)
                              .keep_batchnorm_fp32(true)
                              .master_weights(true)
                              .loss_scale("dynamic")
                              .cast_model_outputs(ScalarType::Float)
                              .num_losses(3)
                              .verbosity(2)
                              .min_loss_scale(4)
                              .max_loss_scale(1024)
                              .skip_nonfinite(false)
                              .allow_banned(false)
                              .allow_tf32(false)
                              .cpu_16bit("native")
                              .fp8("none")
                              .fp8_gradients("e4m3")
                              .fp8_convolutions(false)
                              .huge_pages(false)
                              .float32_modules(Paths{"fc2"})
                              .float32_functions(Paths())
                              .bfloat16_modules(Paths());
  const Settings settings = resolve(OptLevel::from_yaml_string(kYaml), options);
  EXPECT_EQ(settings.properties, OptLevel("O2").preset());
  EXPECT_EQ(settings.cast_model_outputs, ScalarType::Float);
  EXPECT_EQ(settings.num_losses, 3);
  EXPECT_EQ(settings.verbosity, 2);
  EXPECT_EQ(settings.min_loss_scale, 4.0);
  EXPECT_EQ(settings.max_loss_scale, 1024.0);
  EXPECT_FALSE(settings.skip_nonfinite);
  EXPECT_FALSE(settings.allow_banned);
  EXPECT_EQ(settings.allow_tf32, false);
  EXPECT_EQ(settings.cpu_16bit, Cpu16Bit::native);
  EXPECT_EQ(settings.fp8, Float8Recipe::none);
  EXPECT_EQ(settings.fp8_gradients, Float8Format::e4m3);
  EXPECT_FALSE(settings.fp8_convolutions);
  EXPECT_EQ(settings.huge_pages, false);
  EXPECT_EQ(settings.float32_modules, Paths{"fc2"});
  EXPECT_EQ(settings.float32_functions, Paths());
  EXPECT_EQ(settings.bfloat16_modules, Paths());
}

TEST(Precedence, Fp8IsTheLevelsUnlessYamlOrOptionsGiveIt) {
  EXPECT_EQ(resolve("O6").fp8, Float8Recipe::current);
  for (const char* line : {"", "fp8:", "fp8: null", "fp8: ~"}) {
    EXPECT_EQ(resolve(OptLevel::from_yaml_string(std::string("opt_level: O6\n") + line)).fp8, Float8Recipe::current) << line;
  }
  const auto blocks = OptLevel::from_yaml_string("opt_level: O6\nfp8: block128");
  EXPECT_EQ(resolve(blocks).fp8, Float8Recipe::block128);
  EXPECT_EQ(resolve(blocks, Options().fp8("mx")).fp8, Float8Recipe::mx);
  EXPECT_EQ(resolve(blocks, Options().fp8("mx").fp8(std::nullopt)).fp8, Float8Recipe::block128);
}

TEST(Precedence, Fp8CanBeSwitchedOff) {
  EXPECT_EQ(resolve("O6", Options().fp8("none")).fp8, Float8Recipe::none);
  for (const char* line : {"fp8: none", "fp8: None", "fp8: 'none'"}) {
    EXPECT_EQ(resolve(OptLevel::from_yaml_string(std::string("opt_level: O6\n") + line)).fp8, Float8Recipe::none) << line;
  }
}

TEST(Precedence, UnsetOptionsKeepYamlsValues) {
  const Settings settings = resolve(OptLevel::from_yaml_string(kYaml), Options().num_losses(5));
  EXPECT_EQ(settings.num_losses, 5);
  EXPECT_EQ(settings.properties.loss_scale, LossScale(64));
}

TEST(Precedence, OptionsDecideWhetherAmpIsEnabled) {
  EXPECT_FALSE(resolve(OptLevel::from_yaml_string(kYaml), Options().enabled(false)).properties.enabled);
  EXPECT_TRUE(resolve(OptLevel::from_yaml_string("enabled: false\nopt_level: O2"), Options().enabled(true)).properties.enabled);
}

TEST(Precedence, OptionsCanCastAModelThatYamlDoesNot) {
  const auto level = OptLevel::from_yaml_string("opt_level: O2\ncast_model_type: false");
  EXPECT_EQ(resolve(level).properties.cast_model_type, std::nullopt);
  EXPECT_EQ(resolve(level, Options().cast_model_type(ScalarType::Half)).properties.cast_model_type, ScalarType::Half);
}

// The place belongs to the value that was refused, not to the one it replaced.
TEST(Precedence, TheErrorNamesThePlaceOnlyForYamlValues) {
  const auto level = OptLevel::from_yaml_string("opt_level: O2\nmin_loss_scale: 100", "low.yaml");
  const CallResult from_yaml = result_of([&] { resolve(level, Options().max_loss_scale(50)); });
  expect_mentions(from_yaml.message, "low.yaml:2:17: min_loss_scale=100.0 is above max_loss_scale=50.0");
  const CallResult from_options = result_of([&] { resolve(level, Options().min_loss_scale(-1)); });
  EXPECT_EQ(from_options.message.find("min_loss_scale=-1.0"), 0u) << from_options.message;
}

}  // namespace
}  // namespace apex::opt_levels::testing
