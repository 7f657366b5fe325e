// The repair file: its entries are needed, apply nowhere else, and unused ones are reported.
#include "tests/oracle/verdict/repairs.h"

#include "tests/oracle/case_copy.h"
#include "tests/oracle/session/history.h"

namespace oracle {
namespace {

const fs::path kData = ORACLE_DATA;
constexpr const char* kNoEntries = "{}";

Report replay_recorded(const std::string& name, const Repairs& repairs) {
  Report report(repairs);
  replay_case(kData / "cases" / name, report);
  return report;
}

TEST(RepairFile, Bug10AResumedCaseFailsWithoutItsEntry) {
  expect_outcome(replay_recorded("resume_adam_O2", Repairs::parse(kNoEntries, "none")), 0, 1, 0);
  expect_outcome(replay_recorded("resume_adam_O2", Repairs::standard()), 1, 0, 0);
}

// The resumed run is compared with the saved run, bit for bit, instead of the recording. Here it differs, since the checkpoint
// does not hold the evaluation mode.
TEST(RepairFile, Bug10AResumedCaseIsComparedWithTheSavedRun) {
  for (const char* name : {"resume_adam_O2", "resume_sgd_O2", "resume_sgd_O0"}) {
    CaseCopy copy(name);
    copy.alter("{\"op\": \"load\"", "{\"op\": \"mode\", \"model\": \"m0\", \"train\": false}, {\"op\": \"load\"");
    testing::internal::CaptureStdout();
    EXPECT_EQ(copy.replay().failed(), 1);
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_NE(text.find("resumed run: expected the bits of the run that was saved"), std::string::npos) << text;
  }
}

TEST(RepairFile, TableRowsFailWithoutTheirEntries) {
  for (const char* table : {"errors", "o1_casts"}) {
    Report without{Repairs::parse(kNoEntries, "none")}, with;
    replay_tables(kData, table, without);
    replay_tables(kData, table, with);
    EXPECT_GT(without.failed(), 0) << table;
    EXPECT_EQ(with.failed() + with.skipped(), 0) << table;
  }
}

TEST(RepairFile, ARepairDoesNotExcuseExactValues) {
  CaseCopy copy("resume_adam_O2");
  copy.alter("\"unskipped_after\": 4", "\"unskipped_after\": 3");
  expect_outcome(copy.replay(), 0, 1, 0);
}

TEST(RepairFile, AnEntryMatchesByFeatureNotByName) {
  CaseCopy copy("resume_adam_O2");
  copy.alter("\"resume_adam_O2\"", "\"renamed\"");
  expect_outcome(copy.replay(), 1, 0, 0);
  CaseCopy at_O1("resume_adam_O1");
  at_O1.alter_tensor("rec.resumed4.opt0");
  expect_outcome(at_O1.replay(), 0, 1, 0);
}

// A single entry for places with these features.
Repairs entry_for(const std::string& when, const std::string& effect = "") {
  const std::string expect = effect.empty() ? "[]" : "[\"" + effect + "\"]";
  return Repairs::parse(
      "{\"events\": [{\"when\": " + when + ", \"expect\": " + expect + ", \"item\": \"FAKE-1\", \"reason\": \"test\"}]}",
      "test");
}

TEST(RepairFile, FeaturesFollowFromACasesContent) {
  const auto matches = [](const std::string& name, const std::string& when) {
    const Report report = replay_recorded(name, entry_for(when));
    return report.repairs().unused().empty();
  };
  // The features of BWD-21.
  EXPECT_TRUE(matches("accumulate_stash_O2", R"({"event": "backward", "masters": "true", "accumulates": "true"})"));
  EXPECT_FALSE(matches("mlp_sgd_O2", R"({"event": "backward", "accumulates": "true"})"));
  EXPECT_TRUE(matches("convbn_sgd_O2", R"({"event": "backward", "native_params": "true", "static_loss_scale": "none"})"));
  EXPECT_FALSE(matches("mlp_sgd_O2", R"({"event": "backward", "native_params": "true"})"));
  EXPECT_TRUE(matches("static_1_O2", R"({"event": "backward", "static_loss_scale": "1"})"));
  // BWD-31.
  EXPECT_TRUE(matches("amp_fusedsgd_two_losses_O2_mat0", R"({"event": "backward", "steps_model_grads": "true"})"));
  EXPECT_FALSE(matches("amp_fusedsgd_two_losses_O2_mat1", R"({"event": "backward", "steps_model_grads": "true"})"));
  EXPECT_TRUE(matches("gan_O2", R"({"event": "backward", "several_models": "false"})"));
  // BUG-01.
  EXPECT_TRUE(matches("mlp_sgd_O1", R"({"event": "forward", "casts": "true", "changed_since_evaluation": "false"})"));
  EXPECT_FALSE(matches("mlp_sgd_O1", R"({"event": "forward", "changed_since_evaluation": "true"})"));
  // FOPT-09: parameters that come later than others, but none of them last.
  EXPECT_TRUE(matches("fusedsgd_missing_grads", R"({"event": "step", "optimizer": "FusedSGD", "last_is_fresh": "false"})"));
  EXPECT_FALSE(matches("fusedsgd_missing_grads", R"({"event": "step", "last_is_fresh": "true"})"));
  // FOPT-08.
  EXPECT_TRUE(matches("fused_lamb_float32_wd00117_mgn1_nv0_w1_ga1", R"({"event": "step", "max_grad_norm": "1"})"));
  EXPECT_FALSE(matches("amp_fusedlamb_O1", R"({"event": "step", "max_grad_norm": "1"})"));
}

// FOPT-08: Apex's values for such a case are not the expected ones. The recorded norms are above 1, and clipped.
TEST(RepairFile, Fopt08LambWithoutAMaximumIsNotComparedWithApex) {
  CaseCopy copy("fused_lamb_float32_wd00117_mgn1_nv0_w1_ga1");
  copy.alter("\"max_grad_norm\": 1.0", "\"max_grad_norm\": 0.0");
  expect_outcome(copy.replay(Repairs::parse(kNoEntries, "none")), 0, 1, 0);
  expect_outcome(copy.replay(), 1, 0, 0);
}

TEST(RepairFile, ValuesApartSkipsOnlyNumbers) {
  const Repairs apart = entry_for(R"({"event": "forward", "masters": "true"})", "values_apart");
  CaseCopy values("mlp_sgd_O2");
  values.alter_tensor("out.");
  expect_outcome(values.replay(Repairs::parse(kNoEntries, "none")), 0, 1, 0);
  expect_outcome(values.replay(apart), 1, 0, 0);
  CaseCopy dtype("mlp_sgd_O2");
  dtype.alter("\"output_dtype\": \"float32\"", "\"output_dtype\": \"float16\"");
  expect_outcome(dtype.replay(apart), 0, 1, 0);
  EXPECT_EQ(values.replay(entry_for(R"({"event": "forward"})", "imagined")).failed(), 1) << "no such effect";
}

Json event(const std::string& text) { return Json::parse(text, "event"); }

TEST(RepairFile, Bug01IsRecognizedByTheOrderOfEvents) {
  const Json evaluation = event(R"({"op": "forward", "model": "m0", "no_grad": true})");
  const Json training = event(R"({"op": "forward", "model": "m0"})");
  const Json load = event(R"({"op": "load", "from": "a"})");
  const Json backward = event(R"({"op": "backward", "optimizers": ["o"]})");
  History history;
  history.add(training);
  history.add(load);
  EXPECT_FALSE(history.changed_since_evaluation());
  history.add(evaluation);
  EXPECT_FALSE(history.changed_since_evaluation());
  history.add(load);
  EXPECT_TRUE(history.changed_since_evaluation());
  history.add(backward);
  EXPECT_FALSE(history.changed_since_evaluation());
}

TEST(RepairFile, AccumulationEndsWithZeroGrad) {
  History history;
  history.add(event(R"({"op": "backward", "optimizers": ["a", "b"]})"));
  history.add(event(R"({"op": "step", "optimizer": "a"})"));
  EXPECT_TRUE(history.accumulates("a"));
  history.add(event(R"({"op": "zero_grad", "optimizer": "a"})"));
  EXPECT_FALSE(history.accumulates("a"));
  EXPECT_TRUE(history.accumulates("b"));
}

TEST(RepairFile, TheScaleOfAPassIsKnownUntilTheStep) {
  History history;
  EXPECT_FALSE(history.scale_of_last_pass("a").has_value());
  history.add(event(R"({"op": "backward", "optimizers": ["a"], "expect": {"scale_used": 8.0}})"));
  history.add(event(R"({"op": "zero_grad", "optimizer": "a"})"));
  EXPECT_EQ(history.scale_of_last_pass("a"), 8.0);
  history.add(event(R"({"op": "step", "optimizer": "a"})"));
  EXPECT_FALSE(history.scale_of_last_pass("a").has_value());
}

constexpr const char* kImagined = R"({"events": [{"when": {"event": "imagined*", "masters": "true"}, "expect": ["values_apart"],
  "item": "FAKE-1", "reason": "imagined"}]})";

TEST(RepairFile, AnEntryThatMatchesNothingIsReported) {
  Report report{Repairs::parse(kImagined, "imagined")};
  replay_case(kData / "cases" / "mlp_sgd_O2", report);
  EXPECT_EQ(report.summary(), 0);
  testing::internal::CaptureStdout();
  EXPECT_EQ(report.summary(/*expect_all_repairs=*/true), 1);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("FAKE-1 (event imagined*, masters true) matches nothing"), std::string::npos) << text;
}

TEST(RepairFile, AllFeaturesOfAnEntryMustMatch) {
  const Repairs repairs = Repairs::parse(kImagined, "imagined");
  EXPECT_EQ(repairs.find("events", {{"event", "imagined"}}), nullptr);
  EXPECT_EQ(repairs.find("events", {{"event", "imagined"}, {"masters", "false"}}), nullptr);
  EXPECT_EQ(repairs.find("calls", {{"event", "imagined"}, {"masters", "true"}}), nullptr);
  EXPECT_NE(repairs.find("events", {{"event", "imagined things"}, {"masters", "true"}, {"casts", "false"}}), nullptr);
  EXPECT_TRUE(repairs.unused().empty());
}

TEST(RepairFile, EntriesNeedAPlaceAndAReason) {
  const auto parse = [](const std::string& entry) { return Repairs::parse("{\"calls\": [" + entry + "]}", "test"); };
  EXPECT_THROW(parse(R"({"when": {}, "expect": null, "item": "BUG-01", "reason": "r"})"), std::runtime_error);
  EXPECT_THROW(parse(R"({"when": {"call": "c"}, "expect": null, "item": "BUG-01", "reason": ""})"), std::runtime_error);
  EXPECT_THROW(parse(R"({"when": {"call": "c"}, "expect": null, "item": "BUG-01"})"), std::runtime_error);
  EXPECT_NO_THROW(parse(R"({"when": {"call": "c"}, "expect": null, "item": "BUG-01", "reason": "r"})"));
}

}  // namespace
}  // namespace oracle
