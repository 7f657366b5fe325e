#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "opt_levels/initialize_options.h"
#include "tests/opt_levels/errors.h"

namespace apex::opt_levels::testing {
namespace {

using c10::ScalarType;
using Options = InitializeOptions;

TEST(InitializeOptions, HoldsOnlyGivenOptions) {
  const Options options;
  EXPECT_FALSE(options.enabled());
  EXPECT_FALSE(options.cast_model_type());
  EXPECT_FALSE(options.patch_torch_functions());
  EXPECT_FALSE(options.keep_batchnorm_fp32());
  EXPECT_FALSE(options.master_weights());
  EXPECT_FALSE(options.loss_scale());
  EXPECT_FALSE(options.cast_model_outputs());
  EXPECT_FALSE(options.num_losses());
  EXPECT_FALSE(options.verbosity());
  EXPECT_FALSE(options.min_loss_scale());
  EXPECT_FALSE(options.max_loss_scale());
  EXPECT_FALSE(options.skip_nonfinite());
  EXPECT_FALSE(options.allow_banned());
  EXPECT_FALSE(options.allow_tf32());
  EXPECT_FALSE(options.cpu_16bit());
  EXPECT_FALSE(options.fp8());
  EXPECT_FALSE(options.fp8_gradients());
  EXPECT_FALSE(options.fp8_convolutions());
  EXPECT_FALSE(options.huge_pages());
  EXPECT_FALSE(options.casts());
  EXPECT_FALSE(options.float32_modules());
  EXPECT_FALSE(options.float32_functions());
  EXPECT_FALSE(options.bfloat16_modules());
}

TEST(InitializeOptions, ChainsAndReturnsEveryValue) {
  const Options options = Options()
                              .enabled(false)
                              .cast_model_type(ScalarType::BFloat16)
                              .patch_torch_functions(false)
                              .keep_batchnorm_fp32(false)
                              .master_weights(false)
                              .loss_scale(256)
                              .cast_model_outputs(ScalarType::Half)
                              .num_losses(3)
                              .verbosity(2)
                              .min_loss_scale(8)
                              .max_loss_scale(1024)
                              .skip_nonfinite(true)
                              .allow_banned(true)
                              .allow_tf32(true)
                              .cpu_16bit("native")
                              .fp8("mx")
                              .fp8_gradients("e5m2")
                              .fp8_convolutions(true)
                              .huge_pages(true)
                              .casts(CastLists())
                              .float32_modules(std::vector<std::string>{"fc1"})
                              .float32_functions(std::vector<std::string>{"aten::exp"})
                              .bfloat16_modules(std::vector<std::string>{"head"});
  EXPECT_EQ(options.enabled(), false);
  EXPECT_EQ(options.cast_model_type(), std::optional<ScalarType>(ScalarType::BFloat16));
  EXPECT_EQ(options.patch_torch_functions(), false);
  EXPECT_EQ(options.keep_batchnorm_fp32(), false);
  EXPECT_EQ(options.master_weights(), false);
  EXPECT_EQ(options.loss_scale(), LossScale(256.0));
  EXPECT_EQ(options.cast_model_outputs(), ScalarType::Half);
  EXPECT_EQ(options.num_losses(), 3);
  EXPECT_EQ(options.verbosity(), 2);
  EXPECT_EQ(options.min_loss_scale(), 8.0);
  EXPECT_EQ(options.max_loss_scale(), 1024.0);
  EXPECT_EQ(options.skip_nonfinite(), true);
  EXPECT_EQ(options.allow_banned(), true);
  EXPECT_EQ(options.allow_tf32(), true);
  EXPECT_EQ(options.cpu_16bit(), Cpu16Bit::native);
  EXPECT_EQ(options.fp8(), Float8Recipe::mx);
  EXPECT_EQ(options.fp8_gradients(), Float8Format::e5m2);
  EXPECT_EQ(options.fp8_convolutions(), true);
  EXPECT_EQ(options.huge_pages(), true);
  EXPECT_EQ(options.casts(), CastLists());
  EXPECT_EQ(options.float32_modules(), std::vector<std::string>{"fc1"});
  EXPECT_EQ(options.float32_functions(), std::vector<std::string>{"aten::exp"});
  EXPECT_EQ(options.bfloat16_modules(), std::vector<std::string>{"head"});
}

TEST(InitializeOptions, NulloptUnsetsAnOption) {
  Options options = Options().enabled(true).cast_model_type(false).patch_torch_functions(true).keep_batchnorm_fp32("True");
  options.master_weights(true).loss_scale("dynamic").cast_model_outputs(ScalarType::Float).num_losses(2).verbosity(0);
  options.min_loss_scale(1)
      .max_loss_scale(2)
      .skip_nonfinite(true)
      .allow_banned(true)
      .allow_tf32(false)
      .cpu_16bit(Cpu16Bit::float32)
      .fp8(Float8Recipe::none)
      .fp8_gradients(Float8Format::e4m3)
      .fp8_convolutions(false)
      .huge_pages(false)
      .casts(CastLists::built_in())
      .float32_modules(std::vector<std::string>())
      .float32_functions(std::vector<std::string>())
      .bfloat16_modules(std::vector<std::string>());
  EXPECT_NE(options, Options());
  const auto none = std::nullopt;
  options.enabled(none).cast_model_type(none).patch_torch_functions(none).keep_batchnorm_fp32(none).master_weights(none);
  options.loss_scale(none).cast_model_outputs(none).num_losses(none).verbosity(none).min_loss_scale(none);
  options.max_loss_scale(none).skip_nonfinite(none).allow_banned(none).allow_tf32(none).cpu_16bit(none);
  options.fp8(none).fp8_gradients(none).fp8_convolutions(none).huge_pages(none).casts(none).bfloat16_modules(none);
  options.float32_modules(none).float32_functions(none);
  EXPECT_EQ(options, Options());
}

TEST(InitializeOptions, CastModelTypeFalseDiffersFromUnset_PROP_11) {
  const Options options = Options().cast_model_type(false);
  ASSERT_TRUE(options.cast_model_type().has_value());
  EXPECT_EQ(*options.cast_model_type(), std::nullopt);
  EXPECT_NE(options, Options());
}

TEST(InitializeOptions, TrueIsNotAModelType_PROP_10) {
  expect_error(Outcome::value_error, {"cast_model_type=true", "kHalf", "false"}, [] { Options().cast_model_type(true); });
}

TEST(InitializeOptions, StringLiteralForBatchNormIsReadAsText_PROP_14) {
  EXPECT_EQ(Options().keep_batchnorm_fp32("False").keep_batchnorm_fp32(), false);
  EXPECT_EQ(Options().keep_batchnorm_fp32(std::string("True")).keep_batchnorm_fp32(), true);
  for (const char* text : {"true", "false", "", "1", "None"}) {
    expect_error(Outcome::runtime_error, {"keep_batchnorm_fp32", text, "\"True\""},
                 [&] { Options().keep_batchnorm_fp32(text); });
  }
}

TEST(InitializeOptions, Fp8IsReadByName) {
  EXPECT_EQ(Options().fp8("none").fp8(), Float8Recipe::none);
  EXPECT_EQ(Options().fp8("current").fp8(), Float8Recipe::current);
  EXPECT_EQ(Options().fp8("delayed").fp8(), Float8Recipe::delayed);
  EXPECT_EQ(Options().fp8("block128").fp8(), Float8Recipe::block128);
  EXPECT_EQ(Options().fp8(std::string("mx")).fp8(), Float8Recipe::mx);
  EXPECT_EQ(Options().fp8_gradients("e4m3").fp8_gradients(), Float8Format::e4m3);
  EXPECT_EQ(Options().fp8_gradients(std::string("e5m2")).fp8_gradients(), Float8Format::e5m2);
  for (const char* name : {"blockwise", "MX", "", "true"}) {
    expect_error(Outcome::value_error, {"fp8=\"", name, "\" is not allowed. Give none, current, delayed, block128 or mx."},
                 [&] { Options().fp8(name); });
    expect_error(Outcome::value_error, {"fp8_gradients=\"", name, "\" is not allowed. Give e4m3 or e5m2."},
                 [&] { Options().fp8_gradients(name); });
  }
}

// A value that is set differs from one that is not, also if it is what the level has.
TEST(InitializeOptions, NoFp8AndNoModulesDifferFromUnset) {
  EXPECT_NE(Options().fp8("none"), Options());
  EXPECT_NE(Options().fp8_convolutions(false), Options());
  EXPECT_NE(Options().bfloat16_modules(std::vector<std::string>()), Options());
}

// A literal is a pointer, and a pointer converts to true: `enabled("false")` must not compile.
template <class T, class = void>
struct Takes : std::false_type {};
template <class T>
struct Takes<T, std::void_t<decltype(std::declval<Options&>().enabled(std::declval<T>()))>> : std::true_type {};

TEST(InitializeOptions, FlagsAcceptOnlyBool) {
  EXPECT_TRUE(Takes<bool>::value);
  EXPECT_FALSE(Takes<const char*>::value);
  EXPECT_FALSE(Takes<int>::value);
}

TEST(LossScale, ConvertsFromNumbersAndStrings_PROP_16) {
  EXPECT_EQ(LossScale().value, 1.0);
  EXPECT_EQ(LossScale(128).value, 128.0);
  EXPECT_EQ(LossScale(0.5f).value, 0.5);
  EXPECT_EQ(LossScale(std::size_t{4}).value, 4.0);
  EXPECT_TRUE(LossScale("dynamic").dynamic);
  EXPECT_FALSE(LossScale("128.0").dynamic);
  EXPECT_FALSE((std::is_constructible_v<LossScale, bool>));
}

struct Text {
  const char* text;
  double value;
};

class NumericText : public ::testing::TestWithParam<Text> {};

TEST_P(NumericText, IsParsedAsANumber_PROP_16) { EXPECT_EQ(LossScale(GetParam().text).value, GetParam().value); }

INSTANTIATE_TEST_SUITE_P(Forms, NumericText,
                         ::testing::Values(Text{"64", 64}, Text{"128.0", 128}, Text{"1e3", 1000}, Text{" 2.5 ", 2.5},
                                           Text{"+8", 8}, Text{".5", 0.5}, Text{"-1", -1}));

class OtherText : public ::testing::TestWithParam<const char*> {};

TEST_P(OtherText, IsAValueErrorThatQuotesIt_PROP_16) {
  expect_error(Outcome::value_error, {"loss_scale", GetParam(), "\"dynamic\""}, [] { LossScale scale(GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(Texts, OtherText,
                         ::testing::Values("big", "", "Dynamic", "12x", "1,5", "0x10", "+-3", "--3", "1 2", "dynamic "));

TEST(LossScale, DynamicScalesAreEqualAndDifferFromStaticOnes) {
  EXPECT_EQ(LossScale("dynamic"), LossScale("dynamic"));
  EXPECT_NE(LossScale("dynamic"), LossScale(1.0));
  EXPECT_NE(LossScale(2.0), LossScale(1.0));
}

}  // namespace
}  // namespace apex::opt_levels::testing
