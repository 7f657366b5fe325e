#include <gtest/gtest.h>

#include <sstream>
#include <vector>

#include "opt_levels/detail/values.h"
#include "opt_levels/opt_level.h"
#include "tests/opt_levels/errors.h"

// What the reader refuses: each message has the place, the key, the value found and what is allowed.
namespace apex::opt_levels::testing {
namespace {

struct YamlErrorRow {
  const char* name;
  const char* yaml;
  std::vector<const char*> message;
};

void PrintTo(const YamlErrorRow& row, std::ostream* out) { *out << row.name; }

const YamlErrorRow kYamlErrorRows[] = {
    // keys
    {"unknown_key", "opt_level: O2\nlos_scale: 2", {"c.yaml:2:1:", "'los_scale'", "Did you mean 'loss_scale'?"}},
    {"unknown_key_far_off", "opt_level: O2\nlearning_rate: 2", {"c.yaml:2:1:", "'learning_rate'", "opt_level, enabled,"}},
    {"unknown_key_in_amp", "amp:\n  opt_lvl: O2", {"c.yaml:2:3:", "'opt_lvl'", "'opt_level'"}},
    {"key_of_the_level_files", "opt_level: O1\npatch_functions_type: bfloat16", {"c.yaml:2:1:", "patch_functions_type"}},
    {"duplicate_key", "opt_level: O2\nnum_losses: 1\nnum_losses: 2", {"c.yaml:3:1:", "'num_losses'", "c.yaml:2:1"}},
    {"duplicate_level", "opt_level: O2\nopt_level: O2", {"c.yaml:2:1:", "'opt_level'"}},
    {"duplicate_in_amp", "amp:\n  verbosity: 1\n  verbosity: 1", {"c.yaml:3:3:", "'verbosity'", "c.yaml:2:3"}},
    {"two_amp_blocks", "amp: {opt_level: O2}\namp: {opt_level: O3}", {"c.yaml:2:1:", "'amp'"}},
    {"key_beside_amp", "amp:\n  opt_level: O2\nloss_scale: 2", {"c.yaml:3:1:", "'loss_scale'", "'amp' block"}},
    {"list_as_key", "opt_level: O2\n? [a]\n: 1", {"c.yaml:2:3:", "a list as a key"}},
    // shapes
    {"empty", "", {"c.yaml:", "nothing", "opt_level: O2"}},
    {"comment_only", "# nothing here\n", {"c.yaml:", "nothing"}},
    {"list", "- opt_level", {"c.yaml:1:1:", "a list", "a map"}},
    {"bare_name", "O2", {"c.yaml:1:1:", "a value", "a map"}},
    {"two_documents", "opt_level: O2\n---\nopt_level: O3", {"c.yaml:", "several documents"}},
    // yaml-cpp finds documents without end here.
    {"a_comma_first", ",opt_level: O2", {"c.yaml:", "several documents"}},
    {"one_bfloat16_module", "bfloat16_modules: head", {"c.yaml:1:19:", "bfloat16_modules", "'head'", "a list of names"}},
    {"one_module", "float32_modules: head", {"c.yaml:1:18:", "float32_modules", "'head'", "a list of names"}},
    {"a_module_without_name", "float32_modules: [head, ~]", {"c.yaml:1:25:", "text"}},
    {"a_list_of_lists", "float32_functions: [[aten::exp]]", {"c.yaml:1:21:", "a list", "a name"}},
    {"amp_is_a_value", "amp: O2", {"c.yaml:1:6:", "amp", "a value", "a map"}},
    {"amp_is_a_list", "amp: [O2]", {"c.yaml:1:6:", "amp", "a list"}},
    {"amp_is_empty", "model: 1\namp:\n", {"c.yaml:2:1:", "amp", "nothing"}},
    {"value_is_a_list", "opt_level: O2\nloss_scale: [1, 2]", {"c.yaml:2:13:", "loss_scale", "a list", "a single value"}},
    {"value_is_a_map", "opt_level: {O2: 1}", {"c.yaml:1:12:", "opt_level", "a map"}},
    // text that is no YAML
    {"open_bracket", "opt_level: O2\nloss_scale: [1", {"c.yaml:2:", "not valid YAML"}},
    {"tab", "amp:\n\topt_level: O2", {"c.yaml:2:1: this is not valid YAML: a tab indents the line. Indent with spaces."}},
    {"tab_after_a_space", "amp:\n  verbosity: 1\n \topt_level: O2", {"c.yaml:3:2: this is not valid YAML: a tab indents"}},
    {"tab_elsewhere", "opt_level:\tO2\nloss_scale: [1", {"c.yaml:2:", "not valid YAML: end of sequence"}},
    {"unknown_alias", "opt_level: *level", {"c.yaml:1:12:", "not valid YAML"}},
    // types
    {"bool_yes", "master_weights: yes", {"c.yaml:1:17:", "master_weights", "'yes'", "true or false"}},
    {"bool_number", "enabled: 1", {"c.yaml:1:10:", "enabled", "'1'", "true or false"}},
    {"bool_in_quotes", "enabled: 'false'", {"c.yaml:1:10:", "enabled", "the string \"false\"", "true or false"}},
    {"batchnorm_yes", "opt_level: O2\nkeep_batchnorm_fp32: 'yes'", {"c.yaml:2:22:", "keep_batchnorm_fp32", "\"yes\"", "true"}},
    {"batchnorm_small_string", "opt_level: O2\nkeep_batchnorm_fp32: 'true'", {"c.yaml:2:22:", "\"true\"", "true or false"}},
    {"integer_with_point", "num_losses: 2.0", {"c.yaml:1:13:", "num_losses", "'2.0'", "an integer"}},
    {"integer_in_quotes", "num_losses: '2'", {"c.yaml:1:13:", "num_losses", "\"2\"", "an integer"}},
    {"integer_out_of_range", "num_losses: 9223372036854775808", {"c.yaml:1:13:", "9223372036854775808", "an integer"}},
    {"integer_word", "verbosity: loud", {"c.yaml:1:12:", "verbosity", "'loud'", "an integer"}},
    {"number_word", "max_loss_scale: high", {"c.yaml:1:17:", "max_loss_scale", "'high'", "a number"}},
    {"number_in_quotes", "min_loss_scale: '2'", {"c.yaml:1:17:", "min_loss_scale", "\"2\"", "a number"}},
    {"scale_word", "loss_scale: big", {"c.yaml:1:13:", "loss_scale", "'big'", "dynamic"}},
    {"scale_bool", "loss_scale: true", {"c.yaml:1:13:", "loss_scale", "'true'", "dynamic"}},
    {"scale_hex", "loss_scale: 0x80", {"c.yaml:1:13:", "loss_scale", "'0x80'"}},
    {"double_model", "opt_level: O2\ncast_model_type: float64", {"c.yaml:2:18:", "cast_model_type", "'float64'", "bfloat16"}},
    {"true_model", "opt_level: O2\ncast_model_type: true", {"c.yaml:2:18:", "'true'", "false to leave the model alone"}},
    {"fp8_word", "opt_level: O6\nfp8: blocks", {"c.yaml:2:6:", "fp8", "'blocks'", "none, current, delayed, block128 or mx"}},
    {"fp8_bool", "opt_level: O6\nfp8: true", {"c.yaml:2:6:", "fp8", "'true'", "none, current, delayed, block128 or mx"}},
    {"fp8_quoted_null",
     "opt_level: O6\nfp8: 'null'",
     {"c.yaml:2:6:", "fp8", "\"null\"", "none, current, delayed, block128 or mx"}},
    {"fp8_list", "opt_level: O6\nfp8: [mx]", {"c.yaml:2:6:", "fp8", "a list", "a single value"}},
    {"fp8_gradients_word", "fp8_gradients: e4m3fn", {"c.yaml:1:16:", "fp8_gradients", "'e4m3fn'", "e4m3 or e5m2"}},
    {"fp8_convolutions_word", "fp8_convolutions: current", {"c.yaml:1:19:", "fp8_convolutions", "'current'", "true or false"}},
    {"outputs_false", "cast_model_outputs: false", {"c.yaml:1:21:", "cast_model_outputs", "'false'", "float32"}},
    // ranges
    {"no_losses", "num_losses: 0", {"c.yaml:1:13:", "num_losses=0"}},
    {"negative_verbosity", "verbosity: -1", {"c.yaml:1:12:", "verbosity=-1"}},
    {"negative_scale", "loss_scale: -2", {"c.yaml:1:13:", "loss_scale=-2.0"}},
    {"infinite_scale", "loss_scale: inf", {"c.yaml:1:13:", "loss_scale=inf"}},
    {"zero_bound", "min_loss_scale: 0", {"c.yaml:1:17:", "min_loss_scale=0.0"}},
    {"bounds_crossed",
     "min_loss_scale: 4\nmax_loss_scale: 2",
     {"c.yaml:1:17: min_loss_scale=4.0", "c.yaml:2:17: max_loss_scale=2.0"}},
};

class YamlError : public ::testing::TestWithParam<YamlErrorRow> {};

TEST_P(YamlError, NamesPlaceKeyAndValue) {
  const CallResult result = result_of([] { OptLevel::from_yaml_string(GetParam().yaml, "c.yaml"); });
  EXPECT_EQ(result.outcome, Outcome::value_error) << result.message;
  for (const char* part : GetParam().message) expect_mentions(result.message, part);
}

INSTANTIATE_TEST_SUITE_P(Rows, YamlError, ::testing::ValuesIn(kYamlErrorRows),
                         [](const auto& test) { return test.param.name; });

TEST(YamlError, UnknownLevelIsARuntimeErrorWithItsPlace_INIT_05_BUG_33) {
  expect_error(Outcome::runtime_error, {"c.yaml:2:14:", "'01'", "O0, O1, O2, O3, O4, O5, O6", "not the digit zero"},
               [] { OptLevel::from_yaml_string("amp:\n  opt_level: 01", "c.yaml"); });
}

TEST(YamlError, AnEmptyOptLevelIsARuntimeError_INIT_05) {
  expect_error(Outcome::runtime_error, {"c.yaml:1:1:", "opt_level has no value", "without this line the level is O1"},
               [] { OptLevel::from_yaml_string("opt_level:\nverbosity: 0", "c.yaml"); });
  expect_error(Outcome::runtime_error, {"c.yaml:1:", "opt_level has no value"},
               [] { OptLevel::from_yaml_string("opt_level: null", "c.yaml"); });
}

TEST(YamlError, UnreadableTextIsAnErrorEvenIfAmpIsDisabled) {
  expect_error(Outcome::value_error, {"c.yaml:2:1:", "'los_scale'"},
               [] { OptLevel::from_yaml_string("enabled: false\nlos_scale: 2", "c.yaml"); });
}

// yaml-cpp passes such bytes on, and writes others for them: the level would not be the one that it writes.
TEST(YamlError, TextThatIsNotUtf8IsAnErrorWithItsPlace) {
  expect_error(Outcome::value_error, {"c.yaml:2:12: a text is not UTF-8"},
               [] { OptLevel::from_yaml_string("enabled: false\nopt_level: o\xaa", "c.yaml"); });
  expect_error(Outcome::value_error, {"c.yaml:1:9: a text is not UTF-8"},
               [] { OptLevel::from_yaml_string("casts: {\xc3: float32}", "c.yaml"); });
  EXPECT_NO_THROW(OptLevel::from_yaml_string("enabled: false\nopt_level: \xc3\xa9", "c.yaml"));
}

TEST(YamlError, AnAliasWithinWhatItNamesIsAnError) {
  expect_error(Outcome::value_error, {"c.yaml:", "nested more than 16 deep. Take an alias"},
               [] { OptLevel::from_yaml_string("casts: &a {mm: *a}", "c.yaml"); });
  expect_error(Outcome::value_error, {"c.yaml:", "nested more than 16 deep. Take an alias"},
               [] { OptLevel::from_yaml_string("&a casts: &b [*b]", "c.yaml"); });
}

// Six lists of ten aliases each name a million values.
TEST(YamlError, TooManyValuesAreAnError) {
  std::string text = "casts: {a0: &a0 [x]";
  for (int i = 1; i <= 6; ++i) {
    text += ", a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) text += "*a" + std::to_string(i - 1) + (k < 9 ? ", " : "]");
  }
  expect_error(Outcome::value_error, {"c.yaml:1:", "more than 100000 values", "Use fewer aliases"},
               [&] { OptLevel::from_yaml_string(text + "}", "c.yaml"); });
}

TEST(YamlError, TextWithoutANameIsCalledString) {
  expect_error(Outcome::value_error, {"<string>:1:1:", "'x'"}, [] { OptLevel::from_yaml_string("x: 1"); });
}

// As keep_batchnorm_fp32 is in the levels' own files.
TEST(YamlError, AnOptionalFlagTakesTrueFalseAndNone) {
  std::optional<bool> flag = true;
  EXPECT_STREQ(detail::parse_value(detail::Scalar{"none"}, flag), nullptr);
  EXPECT_EQ(flag, std::nullopt);
  EXPECT_STREQ(detail::parse_value(detail::Scalar{"True"}, flag), nullptr);
  for (const detail::Scalar& other : {detail::Scalar{"yes"}, detail::Scalar{"none", /*quoted=*/true}}) {
    EXPECT_STREQ(detail::parse_value(other, flag), "true, false or none") << other.text;
    EXPECT_EQ(flag, true) << "an error changes nothing";
  }
}

// Two letters of three would make a key of any word.
TEST(YamlError, SuggestsASimilarKeyIgnoringCase) {
  using detail::did_you_mean;
  const std::vector<std::string> known{"lr", "casts", "loss_scale", "SGD"};
  EXPECT_EQ(did_you_mean("LOSS_SCALE", known), " Did you mean 'loss_scale'?");
  EXPECT_EQ(did_you_mean("Sgd", known), " Did you mean 'SGD'?");
  EXPECT_EQ(did_you_mean("lrs", known), " Did you mean 'lr'?");
  EXPECT_EQ(did_you_mean("casst", known), " Did you mean 'casts'?");
  EXPECT_EQ(did_you_mean("xy", known), "");
  EXPECT_EQ(did_you_mean("abc", known), "");
  EXPECT_EQ(did_you_mean("loss_scales_of_all", known), "");
}

TEST(YamlError, MistakesOfAllKeysAndTypesAreReportedTogether) {
  const auto result = result_of([] {
    OptLevel::from_yaml_string("opt_lvl: O2\nloss_scale: big\nverbosity: [1]\nnum_losses: many\nenabled: true\n", "c.yaml");
  });
  EXPECT_EQ(result.outcome, Outcome::value_error);
  std::vector<std::string> lines;
  std::istringstream text(result.message);
  for (std::string line; std::getline(text, line);) lines.push_back(line.substr(0, line.find(": ")));
  EXPECT_EQ(lines, (std::vector<std::string>{"c.yaml:1:1", "c.yaml:3:12", "c.yaml:2:13", "c.yaml:4:13"})) << result.message;
}

TEST(YamlError, OptionsForbiddenByTheLevelAreReportedTogether) {
  expect_error(Outcome::runtime_error,
               {"c.yaml:2:17: master_weights=true is not allowed with O1", "\nc.yaml:3:13: num_losses=0 is not allowed"}, [] {
                 OptLevel::from_yaml_string("opt_level: O1\nmaster_weights: true\nnum_losses: 0\nverbosity: 1", "c.yaml");
               });
  expect_error(Outcome::value_error, {"c.yaml:1:16: num_losses=0", "\nc.yaml:1:30: verbosity=-1"},
               [] { OptLevel::from_yaml_string("{num_losses:   0, verbosity: -1}", "c.yaml"); });
  // One mistake is one line, however many options there are.
  const auto result = result_of([] { OptLevel::from_yaml_string("opt_level: O9\nnum_losses: 2\nverbosity: 1", "c.yaml"); });
  EXPECT_EQ(result.message.find('\n'), std::string::npos) << result.message;
}

std::string message_for(const std::string& yaml) {
  return result_of([&] { OptLevel::from_yaml_string(yaml, "c.yaml"); }).message;
}

// Each alone would be an error at these levels: together they are none.
TEST(YamlError, Fp8AndTheTypeOfTheModelAreCheckedTogether) {
  const std::string losses = "\nnum_losses: 0";
  for (const char* yaml :
       {"opt_level: O2\ncast_model_type: bfloat16\nfp8: mx", "opt_level: O6\nfp8: none\ncast_model_type: half"}) {
    EXPECT_EQ(message_for(yaml), "") << yaml;
    const std::string message = message_for(yaml + losses);
    expect_mentions(message, "c.yaml:4:13: num_losses=0");
    EXPECT_EQ(message.find("fp8"), std::string::npos) << message;
  }
  const std::string both = message_for("opt_level: O2\nfp8: mx" + losses);
  expect_mentions(both, "c.yaml:2:6: fp8=mx is not allowed with cast_model_type=float16");
  expect_mentions(both, "c.yaml:3:13: num_losses=0");
}

// No prefix of a good document may crash the reader or end in another kind of error.
TEST(YamlError, TruncatedTextIsReadOrRefused) {
  const std::string whole = "amp:\n  opt_level: \"O2\"\n  loss_scale: {a: [1, 'x']}\n  ? &k key\n  : *k\n";
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    const CallResult result = result_of([&] { OptLevel::from_yaml_string(whole.substr(0, length), "c.yaml"); });
    EXPECT_NE(result.outcome, Outcome::other) << length << ": " << result.message;
    if (result.outcome != Outcome::accepted) expect_mentions(result.message, "c.yaml");
  }
}

}  // namespace
}  // namespace apex::opt_levels::testing
