#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "opt_levels/resolve.h"
#include "tests/opt_levels/errors.h"

// What the reader accepts.
namespace apex::opt_levels::testing {
namespace {

using c10::ScalarType;
using Options = InitializeOptions;

struct YamlValueRow {
  const char* name;
  const char* yaml;
  Options options;
};

void PrintTo(const YamlValueRow& row, std::ostream* out) { *out << row.name; }

const YamlValueRow kYamlValueRows[] = {
    {"half", "cast_model_type: half", Options().cast_model_type(ScalarType::Half)},
    {"float16", "cast_model_type: float16", Options().cast_model_type(ScalarType::Half)},
    {"bfloat16", "cast_model_type: bfloat16", Options().cast_model_type(ScalarType::BFloat16)},
    {"float", "cast_model_type: float", Options().cast_model_type(ScalarType::Float)},
    {"float32", "cast_model_type: float32", Options().cast_model_type(ScalarType::Float)},
    {"quoted_type", "cast_model_type: \"float32\"", Options().cast_model_type(ScalarType::Float)},
    {"model_left_alone", "cast_model_type: false", Options().cast_model_type(false)},
    {"no_model_type", "cast_model_type: none", Options()},
    {"null_model_type", "cast_model_type: null", Options()},
    {"empty_model_type", "cast_model_type:", Options()},
    {"tilde", "min_loss_scale: ~", Options()},
    {"no_loss_scale", "loss_scale: None", Options()},
    {"capital_true", "master_weights: True", Options().master_weights(true)},
    {"capital_false", "master_weights: False", Options().master_weights(false)},
    {"batchnorm_string", "keep_batchnorm_fp32: 'False'", Options().keep_batchnorm_fp32(false)},
    {"dynamic", "loss_scale: dynamic", Options().loss_scale("dynamic")},
    {"quoted_dynamic", "loss_scale: \"dynamic\"", Options().loss_scale("dynamic")},
    {"integer_scale", "loss_scale: 128", Options().loss_scale(128)},
    {"exponent", "loss_scale: 6.5536e4", Options().loss_scale(65536)},
    {"outputs", "cast_model_outputs: half", Options().cast_model_outputs(ScalarType::Half)},
    {"integer_bound", "max_loss_scale: 4096", Options().max_loss_scale(4096)},
    {"no_fp8", "fp8: none", Options().fp8(Float8Recipe::none)},
    {"capital_no_fp8", "fp8: None", Options().fp8(Float8Recipe::none)},
    {"quoted_no_fp8", "fp8: 'none'", Options().fp8(Float8Recipe::none)},
    {"null_fp8", "fp8: null", Options()},
    {"empty_fp8", "fp8:", Options()},
    {"fp8_gradients", "fp8_gradients: e4m3", Options().fp8_gradients(Float8Format::e4m3)},
    {"no_fp8_gradients", "fp8_gradients: none", Options()},
    {"fp8_convolutions", "fp8_convolutions: true", Options().fp8_convolutions(true)},
    {"capital_no_fp8_convolutions", "fp8_convolutions: False", Options().fp8_convolutions(false)},
    {"fp8_convolutions_none", "fp8_convolutions: none", Options()},
    {"bfloat16_modules", "bfloat16_modules: [fc, head.0]",
     Options().bfloat16_modules(std::vector<std::string>{"fc", "head.0"})},
    {"no_bfloat16_module", "bfloat16_modules: []", Options().bfloat16_modules(std::vector<std::string>())},
    {"bfloat16_modules_none", "bfloat16_modules: none", Options()},
    {"comment", "num_losses: 2   # generator and critic", Options().num_losses(2)},
};

class YamlValue : public ::testing::TestWithParam<YamlValueRow> {};

TEST_P(YamlValue, IsReadLikeTheOptionAtTopLevelAndUnderAmp_PROP_10_PROP_11_PROP_14_PROP_16) {
  const std::string value = GetParam().yaml;
  for (const std::string& text :
       {"opt_level: O0\n" + value, "epochs: 3\namp:\n  opt_level: O0\n  " + value + "\nmodel: {type: mlp}\n"}) {
    SCOPED_TRACE(text);
    const auto level = OptLevel::from_yaml_string(text);
    EXPECT_EQ(level.name(), "O0");
    EXPECT_EQ(level.overrides(), GetParam().options);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, YamlValue, ::testing::ValuesIn(kYamlValueRows),
                         [](const auto& test) { return test.param.name; });

TEST(YamlLevel, IsO1ByDefault_INIT_05) { EXPECT_EQ(OptLevel::from_yaml_string("loss_scale: 2").name(), "O1"); }

TEST(YamlLevel, RecordsThePlaceOfAKey) {
  const auto level = OptLevel::from_yaml_string("# mine\namp:\n  opt_level: O2\n  loss_scale: 2", "mine.yaml");
  EXPECT_EQ(level.place_of("loss_scale"), "mine.yaml:4:15");
  EXPECT_EQ(level.place_of("verbosity"), "");
}

class YamlFile : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(path_) << text; }
  void TearDown() override { std::remove(path_.c_str()); }

  const std::string path_ = ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            std::to_string(getpid()) + ".apex_opt_level.yaml";
};

TEST_F(YamlFile, IsReadLikeAString) {
  write("opt_level: O3\nkeep_batchnorm_fp32: true\n");
  EXPECT_EQ(OptLevel::from_yaml_file(path_), OptLevel::from_yaml_string("opt_level: O3\nkeep_batchnorm_fp32: true"));
}

TEST_F(YamlFile, IsNamedInErrors) {
  write("opt_level: O3\nloss_scal: 2\n");
  expect_error(Outcome::value_error, {(path_ + ":2:1").c_str(), "'loss_scal'"}, [&] { OptLevel::from_yaml_file(path_); });
}

TEST_F(YamlFile, IfEmptyIsAnErrorWithItsName) {
  write("");
  expect_error(Outcome::value_error, {path_.c_str(), "nothing"}, [&] { OptLevel::from_yaml_file(path_); });
}

TEST_F(YamlFile, IfMissingIsAnErrorWithItsName) {
  expect_error(Outcome::runtime_error, {path_.c_str(), "cannot read", "No such file"},
               [&] { OptLevel::from_yaml_file(path_); });
}

TEST(YamlFolder, IsAnErrorWithItsName) {
  expect_error(Outcome::runtime_error, {OPT_LEVELS_DIR, "cannot read", "folder"},
               [] { OptLevel::from_yaml_file(OPT_LEVELS_DIR); });
}

}  // namespace
}  // namespace apex::opt_levels::testing
