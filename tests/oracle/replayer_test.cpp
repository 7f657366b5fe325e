// The replayer itself: it passes a case of another name, and reports every kind of wrong expectation.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/oracle/case_copy.h"
#include "tests/oracle/verdict/compare.h"

namespace oracle {
namespace {

TEST(Replayer, PassesACaseUnderAnyNameAndSeed) {
  CaseCopy copy("mlp_sgd_O2");
  copy.alter("\"mlp_sgd_O2\"", "\"renamed\"");
  copy.alter("\"seed\": ", "\"seed\": 7");
  expect_outcome(copy.replay(), 1, 0, 0);
}

TEST(Replayer, PlaysWrappedOptimizersUnderAnyName) {
  for (const char* original : {"larc_clip_O2", "fp16_optimizer_dynamic"}) {
    CaseCopy copy(original);
    copy.alter("\"seed\": ", "\"seed\": 7");
    expect_outcome(copy.replay(), 1, 0, 0);
  }
  CaseCopy other_wrap("larc_clip_O2");
  other_wrap.alter("\"type\": \"LARC\"", "\"type\": \"Imagined\"");
  expect_outcome(other_wrap.replay(), 0, 0, 1);
  CaseCopy other_argument("larc_clip_O2");
  other_argument.alter("\"trust_coefficient\"", "\"imagined\"");
  expect_outcome(other_argument.replay(), 0, 0, 1);
}

class AlteredFp16Expectations : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(AlteredFp16Expectations, AreReported) {
  CaseCopy copy("fp16_optimizer_dynamic");
  copy.alter(GetParam().first, GetParam().second);
  expect_outcome(copy.replay(), 0, 1, 0);
}

INSTANTIATE_TEST_SUITE_P(Expectations, AlteredFp16Expectations,
                         testing::Values(std::pair("\"scale_used\": 2048.0", "\"scale_used\": 1024.0"),
                                         std::pair("\"scale_after\": 2048.0", "\"scale_after\": 1024.0"),
                                         std::pair("\"overflow\": true", "\"overflow\": false"),
                                         std::pair("\"total_norm\": -1.0", "\"total_norm\": 1.0"),
                                         std::pair("\"skipped\": true", "\"skipped\": false"),
                                         std::pair("\"momentum_buffer\": \"float32\"", "\"momentum_buffer\": \"float16\"")),
                         [](const auto& test) { return std::to_string(test.index); });

class RecordedArithmetic : public testing::Environment {
 public:
  void SetUp() override { use_recorded_arithmetic(); }
};
const auto* const kRecordedArithmetic = testing::AddGlobalTestEnvironment(new RecordedArithmetic);

struct Alteration {
  const char* what;
  const char* from;
  const char* to;
};

class AlteredExpectations : public testing::TestWithParam<Alteration> {};

TEST_P(AlteredExpectations, AreReported) {
  CaseCopy copy("overflow_inject_O2");
  copy.alter(GetParam().from, GetParam().to);
  expect_outcome(copy.replay(), 0, 1, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Expectations, AlteredExpectations,
    testing::Values(Alteration{"scale", "\"scale_after\": 32768.0", "\"scale_after\": 65536.0"},
                    Alteration{"unskipped", "\"unskipped_after\": 1", "\"unskipped_after\": 2"},
                    Alteration{"skipped", "\"skipped\": true", "\"skipped\": false"},
                    Alteration{"will_skip", "{\"opt0\": true}", "{\"opt0\": false}"},
                    Alteration{"params_changed", "\"params_changed\": true", "\"params_changed\": false"},
                    Alteration{"output_dtype", "\"output_dtype\": \"float32\"", "\"output_dtype\": \"float16\""},
                    Alteration{"output_shape", "\"output_shape\": [4, 6]", "\"output_shape\": [6, 4]"},
                    Alteration{"is_model_param", "\"is_model_param\": false", "\"is_model_param\": true"},
                    Alteration{"state", "\"momentum_buffer\": \"float32\"", "\"momentum_buffer\": \"float16\""},
                    Alteration{"state_exists", "\"momentum_buffer\"", "\"other_buffer\""},
                    Alteration{"property", "\"master_weights\": true", "\"master_weights\": false"},
                    Alteration{"parameter_dtype", "\"m0/0.weight\": \"float16\"", "\"m0/0.weight\": \"float32\""}),
    [](const auto& test) { return std::string(test.param.what); });

class AlteredTensors : public testing::TestWithParam<const char*> {};

TEST_P(AlteredTensors, AreReported) {
  CaseCopy copy("convbn_sgd_O2");
  copy.alter_tensor(GetParam());
  expect_outcome(copy.replay(), 0, 1, 0);
}

INSTANTIATE_TEST_SUITE_P(Tensors, AlteredTensors,
                         testing::Values("out.", "rec.s0.m0/", "rec.s0.opt0.g0.p0", "rec.s0.grads.grad.",
                                         "rec.s0.grads.opt0."));

TEST(Replayer, SkipsCasesWithUnknownFeatures) {
  CaseCopy optimizer("mlp_sgd_O2");
  optimizer.alter("\"type\": \"SGD\"", "\"type\": \"Imagined\"");
  expect_outcome(optimizer.replay(), 0, 0, 1);
  CaseCopy layer("mlp_sgd_O2");
  layer.alter("\"type\": \"ReLU\"", "\"type\": \"Imagined\"");
  expect_outcome(layer.replay(), 0, 0, 1);
  CaseCopy event("mlp_sgd_O2");
  event.alter("\"op\": \"step\"", "\"op\": \"imagined\"");
  expect_outcome(event.replay(), 0, 0, 1);
  CaseCopy kind("mlp_sgd_O2");
  kind.alter("\"kind\": \"train\"", "\"kind\": \"imagined\"");
  expect_outcome(kind.replay(), 0, 0, 1);
}

TEST(Replayer, AnUnreadableCaseFails) {
  CaseCopy json("mlp_sgd_O2");
  write(json.folder() / "case.json", "{\"format_version\": 1, \"kind\"");
  expect_outcome(json.replay(), 0, 1, 0);
  CaseCopy tensors("mlp_sgd_O2");
  fs::resize_file(tensors.folder() / "tensors.safetensors", 5);
  expect_outcome(tensors.replay(), 0, 1, 0);
  CaseCopy missing("mlp_sgd_O2");
  missing.alter("\"input\": \"x0\"", "\"input\": \"x99\"");
  expect_outcome(missing.replay(), 0, 1, 0);
}

TEST(Replayer, APatternWithoutMatchesIsAnError) {
  Report report;
  EXPECT_THROW(replay_cases(fs::path(ORACLE_DATA) / "cases", "no_such_case_*", report), std::runtime_error);
}

TEST(Replayer, MatchesCommaSeparatedPatterns) {
  EXPECT_TRUE(matches("mlp_sgd_O2", "gan_*,mlp_*"));
  EXPECT_TRUE(matches("disabled", "disabled,disabled_*"));
  EXPECT_FALSE(matches("mlp_sgd_O2", "mlp"));
}

int failures(const at::Tensor& got, const at::Tensor& expected, const Tolerance& tolerance) {
  Report report;
  report.begin("item", "group");
  compare_tensor(report, "tensor", got, {expected, {}, {}}, tolerance);
  report.end();
  return report.failed();
}

TEST(Compare, BoundsAreKept) {
  Tolerance spacing;
  spacing.spacings = 1;
  const at::Tensor one = at::ones({1}, at::kHalf);
  EXPECT_EQ(failures(at::add(one, 0.0009765625), one, spacing), 0);
  EXPECT_EQ(failures(at::add(one, 0.001953125), one, spacing), 1);
  EXPECT_EQ(failures(one, one.to(at::kFloat), spacing), 1) << "dtypes are exact";
  EXPECT_EQ(failures(at::full({2}, NAN), at::full({2}, NAN), {}), 0);
  EXPECT_EQ(failures(at::full({2}, NAN), at::zeros({2}), {}), 1);
  EXPECT_EQ(failures(at::full({2}, INFINITY), at::full({2}, 3e38), {}), 1);
  EXPECT_EQ(failures(at::zeros({2, 1}), at::zeros({1, 2}), {}), 1) << "shapes are exact";
}

}  // namespace
}  // namespace oracle
