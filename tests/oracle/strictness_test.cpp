// The replayer rejects unknown features by name, and compares everything that a case contains.
#include <ATen/Functions.h>

#include "tests/oracle/case_copy.h"
#include "tests/oracle/networks/layers.h"
#include "tests/oracle/tables/tables.h"

namespace oracle {
namespace {

// ---- vocabulary

struct Insertion {
  const char* name;
  const char* original;
  const char* from;
  const char* to;
  const char* needs;
};

void PrintTo(const Insertion& insertion, std::ostream* out) { *out << insertion.name; }

class UnknownFeatures : public testing::TestWithParam<Insertion> {};

TEST_P(UnknownFeatures, AreSkippedByName) {
  CaseCopy copy(GetParam().original);
  copy.alter(GetParam().from, GetParam().to);
  expect_outcome(copy.replay(), 0, 0, 1);
  expect_printed(copy, std::string("skipped, needs ") + GetParam().needs);
}

INSTANTIATE_TEST_SUITE_P(
    Places, UnknownFeatures,
    testing::Values(
        Insertion{"case_field", "mlp_sgd_O2", "\"seed\": ", "\"imagined\": ", "field 'imagined' of case"},
        Insertion{"model_field", "mlp_sgd_O2", "\"layers\": ", "\"imagined\": 1, \"layers\": ", "field 'imagined' of model"},
        Insertion{"layer_field", "mlp_sgd_O2", "{\"type\": \"ReLU\"", "{\"imagined\": 1, \"type\": \"ReLU\"",
                  "field 'imagined' of layer"},
        Insertion{"optimizer_field", "mlp_sgd_O2",
                  "\"groups\": ", "\"imagined\": 1, \"groups\": ", "field 'imagined' of optimizer"},
        Insertion{"group_field", "mlp_sgd_O2", "\"groups\": [{", "\"groups\": [{\"imagined\": false, ",
                  "field 'imagined' of param group"},
        Insertion{"wrap_field", "larc_clip_O2", "\"type\": \"LARC\"", "\"imagined\": 1, \"type\": \"LARC\"",
                  "field 'imagined' of wrap"},
        Insertion{"property", "mlp_sgd_O2", "\"properties\": {", "\"properties\": {\"imagined\": 1, ",
                  "field 'imagined' of properties"},
        Insertion{"event_field", "mlp_sgd_O2", "\"op\": \"step\"", "\"op\": \"step\", \"imagined\": false",
                  "field 'imagined' of event step"},
        Insertion{"expected_field", "mlp_sgd_O2", "\"expect\": {\"skipped\"", "\"expect\": {\"imagined\": 1, \"skipped\"",
                  "field 'imagined' of what event step expects"},
        Insertion{"expected_of_a_parameter", "mlp_sgd_O2", "\"is_model_param\"", "\"imagined\": 1, \"is_model_param\"",
                  "field 'imagined' of what a record expects of a parameter"},
        Insertion{"record", "mlp_sgd_O2", "\"what\": [", "\"what\": [\"imagined\", ", "a record of 'imagined'"},
        Insertion{"loss", "mlp_sgd_O2", "\"kind\": \"mse\"", "\"kind\": \"imagined\"", "loss imagined"},
        Insertion{"one_kernel_of_many", "multi_tensor_scale_float32", "\"fn\": \"scale\"", "\"fn\": \"imagined\"",
                  "multi_tensor_imagined"},
        Insertion{"kernel_field", "multi_tensor_scale_float32", "\"fn\": \"scale\"", "\"imagined\": 1, \"fn\": \"scale\"",
                  "field 'imagined' of calls of multi_tensor_scale"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Vocabulary, NullCountsAsAbsent) {
  CaseCopy copy("mlp_sgd_O2");
  copy.alter("\"op\": \"step\"", "\"op\": \"step\", \"imagined\": null");
  expect_outcome(copy.replay(), 1, 0, 0);
}

TEST(Vocabulary, AnUnknownTypeOfAListIsAFailure) {
  CaseCopy copy("multi_tensor_scale_float32");
  copy.alter("\"dtype\": \"float32\"", "\"dtype\": \"imagined\"");
  expect_outcome(copy.replay(), 0, 1, 0);
  expect_printed(copy, "unknown dtype 'imagined'");
}

Tensors run_layer(const std::string& json, const Tensors& x) {
  const Json layer = Json::parse(json, "layer");
  const std::string type = layer.at("type").as_string();
  LayerArgs args(layer, type);
  Layer made = layer_registry().at(type)(args);
  args.finish();
  if (made.module) {
    for (at::Tensor& parameter : made.module->parameters())
      parameter.data().copy_(at::arange(parameter.numel()).view_as(parameter));
  }
  return made.forward(x);
}

TEST(Vocabulary, LastStepAndMatPowFollowTheFormat) {
  const at::Tensor x = at::arange(24, at::kFloat).view({2, 3, 4});
  EXPECT_TRUE(at::equal(run_layer(R"({"type": "LastStep"})", {x})[0], x.slice(1, 2, 3).squeeze(1)));
  const at::Tensor y = at::tensor({1.0f, 2.0f}).view({1, 2});
  const at::Tensor product = at::tensor({6.0f, 9.0f, 12.0f}).view({1, 3});  // with rows (0, 1, 2) and (3, 4, 5)
  EXPECT_TRUE(at::equal(run_layer(R"({"type": "MatPow", "args": {"n_in": 2, "n_out": 3}})", {y})[0], product * product));
  EXPECT_THROW(run_layer(R"({"type": "LastStep", "args": {"dim": 0}})", {x}), NeedsFeature);
  EXPECT_THROW(run_layer(R"({"type": "RNN", "args": {"input_size": 4, "hidden_size": 2, "nonlinearity": "imagined"}})", {x}),
               NeedsFeature);
}

TEST(Vocabulary, ForwardSupportsDisableCasts) {
  CaseCopy copy("mlp_sgd_O1");
  copy.alter("\"op\": \"forward\"", "\"op\": \"forward\", \"disable_casts\": true");
  expect_printed(copy, "output dtype: expected float16, got float32");
}

TEST(Vocabulary, SetRequiresGradAcceptsOneOrSeveralParameters) {
  const auto copy_with = [](const char* event) {
    auto copy = std::make_unique<CaseCopy>("mlp_sgd_O2");
    copy->alter("{\"op\": \"step\"", std::string(event) + ", {\"op\": \"step\"");
    return copy;
  };
  const auto one = copy_with(R"({"op": "set_requires_grad", "param": "m0/0.weight", "value": true})");
  expect_outcome(one->replay(), 1, 0, 0);
  const auto several = copy_with(R"({"op": "set_requires_grad", "params": ["m0/0.weight"], "requires_grad": true})");
  expect_outcome(several->replay(), 1, 0, 0);
  const auto none = copy_with(R"({"op": "set_requires_grad", "value": true})");
  expect_outcome(none->replay(), 0, 1, 0);
}

TEST(Vocabulary, SetLossScaleIsOnlyForFp16Optimizers) {
  CaseCopy copy("fp16_optimizer_static128");
  copy.alter("{\"op\": \"fp16_backward\"",
             "{\"op\": \"set_loss_scale\", \"optimizer\": \"opt0\", \"value\": 64.0}, {\"op\": \"fp16_backward\"");
  expect_printed(copy, "scale_used, element 0: expected 128 within 0, got 64");
}

// ---- tables

struct TypedRow {
  const char* name;
  const char* row;
  int passed;
  int failed;
  int skipped;
};

void PrintTo(const TypedRow& row, std::ostream* out) { *out << row.name; }

class TypesOfInputs : public testing::TestWithParam<TypedRow> {};

TEST_P(TypesOfInputs, UnknownOnesAreSkipped) {
  const std::string table = std::string(R"({"ops": [{"namespace": "torch", "list": "fp32", "op": "exp", "cases": [)") +
                            GetParam().row + R"(]}], "modules": []})";
  Report report;
  replay_o1_table(Json::parse(table, "table"), report);
  expect_outcome(report, GetParam().passed, GetParam().failed, GetParam().skipped);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, TypesOfInputs,
    testing::Values(
        TypedRow{
            "double_",
            R"({"inputs": "double", "float_args": 1, "without_amp": "float64", "output": "float32", "op_receives": ["float32"]})",
            1, 0, 0},
        TypedRow{
            "double_not_cast",
            R"({"inputs": "double", "float_args": 1, "without_amp": "float64", "output": "float64", "op_receives": ["float64"]})",
            0, 1, 0},
        TypedRow{
            "bfloat16",
            R"({"inputs": "bfloat16", "float_args": 1, "without_amp": "bfloat16", "output": "float32", "op_receives": ["float32"]})",
            1, 0, 0},
        TypedRow{
            "bfloat16_is_not_float",
            R"({"inputs": "bfloat16", "float_args": 1, "without_amp": "float32", "output": "float32", "op_receives": ["float32"]})",
            0, 1, 0},
        TypedRow{"int64",
                 R"({"inputs": "int64", "float_args": 1, "without_amp": "float32", "output": "float32", "op_receives": []})", 1,
                 0, 0},
        TypedRow{
            "int64_is_not_floating",
            R"({"inputs": "int64", "float_args": 1, "without_amp": "float32", "output": "float32", "op_receives": ["float32"]})",
            0, 1, 0},
        TypedRow{"bool_",
                 R"({"inputs": "bool", "float_args": 1, "without_amp": "float32", "output": "float32", "op_receives": []})", 1,
                 0, 0},
        TypedRow{"unknown",
                 R"({"inputs": "imagined", "float_args": 1, "without_amp": "float32", "output": "float32", "op_receives": []})",
                 0, 0, 1},
        TypedRow{
            "unknown_field",
            R"({"inputs": "float", "imagined": 1, "float_args": 1, "without_amp": "float32", "output": "float32", "op_receives": ["float32"]})",
            0, 0, 1}),
    [](const auto& test) { return test.param.name; });

Report replayed_registry(const std::string& type, const std::string& output) {
  const std::string row = R"({"inputs": [")" + type + R"("], "returns": [")" + output + R"("]})";
  const std::string wrap = R"x("api": "float_function (decorator)", "target": "t", "when": "with O1")x";
  Report report;
  replay_user_registry_table(Json::parse("{\"rows\": [{" + wrap + ", \"cases\": [" + row + "]}]}", "table"), report);
  return report;
}

TEST(WrappedFunctions, InputsOfUnknownTypesAreSkipped) {
  expect_outcome(replayed_registry("double", "float32"), 1, 0, 0);
  expect_outcome(replayed_registry("bfloat16", "float32"), 1, 0, 0);
  expect_outcome(replayed_registry("bfloat16", "bfloat16"), 0, 1, 0);
  expect_outcome(replayed_registry("int64", "int64"), 1, 0, 0);
  expect_outcome(replayed_registry("imagined", "float32"), 0, 0, 1);
}

Report replayed_error(const std::string& gist) {
  Report report;
  const std::string table =
      R"({"cases": [{"id": "loss_scale_bad_string", "call": "c", "exception": "ValueError", "gist": ")" + gist + "\"}]}";
  replay_error_table(Json::parse(table, "table"), report);
  return report;
}

TEST(ErrorTable, TheMeaningOfAMessageIsCompared) {
  expect_outcome(replayed_error("not a number"), 1, 0, 0);
  expect_outcome(replayed_error("index out of range"), 0, 1, 0);
  expect_outcome(replayed_error("imagined"), 0, 0, 1);
}

TEST(Tables, AnUnknownPartIsSkipped) {
  const fs::path path = fs::temp_directory_path() / ("table_" + std::to_string(::getpid()) + ".json");
  write(path, R"({"format_version": 1, "sequences": [], "imagined": []})");
  Report report;
  replay_table(path, report);
  fs::remove(path);
  expect_outcome(report, 0, 0, 1);
}

// ---- nothing goes uncompared

TEST(Replay, AnExpectedTensorMustBeStored) {
  for (const char* name :
       {"out.s0.out", "rec.s0.grads.grad.m0/0.weight", "rec.s0.opt0.g0.p0", "rec.s0.opt0.g0.p0.state.momentum_buffer"}) {
    CaseCopy copy("overflow_inject_O2");
    const std::string other = std::string(name).replace(std::string(name).size() - 1, 1, "_");
    copy.rename_tensor(name, other);
    expect_outcome(copy.replay(), 0, 1, 0);
    expect_printed(copy, std::string(name) + ": expected a stored tensor, got none");
    expect_printed(copy, other + ": expected to be compared with something");
  }
}

TEST(Replay, AStoredTensorMustBeExpected) {
  CaseCopy type("resume_sgd_O2");
  type.alter("\"opt0.0.momentum_buffer\": \"float32\"", "\"opt0.0.momentum_buffer\": \"float16\"");
  expect_printed(type, "saved optimizer state opt0.0.momentum_buffer: expected float16, got float32");
  CaseCopy number("resume_sgd_O2");
  number.alter("\"opt0.0.momentum_buffer\": \"float32\",", "");
  expect_printed(number, "number of saved optimizer states");
}

// The step that would show it is taken out of the case.
TEST(Replay, AStatementAboutTheNextStepIsChecked) {
  const std::string recorded = "\"will_skip\": {\"opt0\": false}\n   }\n  },";
  const std::string step =
      "\n  {\"op\": \"step\", \"optimizer\": \"opt0\", \"expect\": {\"skipped\": false, \"params_changed\": true}},";
  const std::string shown = "end: will_skip, seen at a step: expected true, got false";
  CaseCopy wrong("overflow_inject_O2"), right("overflow_inject_O2");
  wrong.alter(recorded + step, std::string(recorded).replace(recorded.find("false"), 5, "true"));
  right.alter(recorded + step, recorded);
  expect_printed(wrong, shown);
  EXPECT_EQ(printed_by(right).find("will_skip"), std::string::npos);
}

TEST(Replay, ASkippedCaseIsAFailure) {
  CaseCopy copy("mlp_sgd_O2");
  copy.alter("\"kind\": \"train\"", "\"kind\": \"imagined\"");
  EXPECT_EQ(copy.replay().summary(), 1);
}

struct Obstacle {
  const char* name;
  const char* from;
  const char* to;
  const char* reason;
};

void PrintTo(const Obstacle& obstacle, std::ostream* out) { *out << obstacle.name; }

class ResumedRun : public testing::TestWithParam<Obstacle> {};

TEST_P(ResumedRun, IsComparedOrReportedAsNotCompared) {
  CaseCopy copy("resume_sgd_O1");
  copy.alter(GetParam().from, GetParam().to);
  expect_printed(copy, std::string("not compared, a resumed run with the run that was saved: ") + GetParam().reason);
  EXPECT_EQ(copy.replay().summary(false, /*expect_all_checks=*/true), 1);
}

constexpr const char* kLoad = "{\"op\": \"load\", \"from\": \"ck\"";
INSTANTIATE_TEST_SUITE_P(
    Obstacles, ResumedRun,
    testing::Values(
        Obstacle{"part", kLoad, "{\"op\": \"load\", \"from\": \"ck\", \"order\": [\"model\", \"optimizer\"]", "a part"},
        Obstacle{"mode", "{\"op\": \"zero_grad\"", R"({"op": "mode", "model": "m0", "train": true}, {"op": "zero_grad")",
                 "it sets something"},
        Obstacle{"other_events", "{\"op\": \"zero_grad\"",
                 R"({"op": "amp_state", "expect": {"amp_state": {}}}, {"op": "zero_grad")", "it goes on to do other things"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Resuming, IsComparedToTheEndInRecordedCases) {
  for (const char* name : {"resume_sgd_O0", "resume_sgd_O1", "resume_adam_O2"}) {
    EXPECT_EQ(CaseCopy(name).replay().summary(false, /*expect_all_checks=*/true), 0) << name;
  }
}

}  // namespace
}  // namespace oracle
