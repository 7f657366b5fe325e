// The replay of the O1 cast table reports wrong rows.
#include <gtest/gtest.h>

#include "tests/oracle/tables/tables.h"

namespace oracle {
namespace {

struct Row {
  const char* name;
  const char* op;
  const char* row;
  int passed;
  int failed;
  int skipped;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

const Row kRows[] = {
    {"right", "exp",
     R"({"inputs": "half", "float_args": 1, "without_amp": "float16", "output": "float32", "op_receives": ["float32"]})", 1, 0,
     0},
    {"output", "exp",
     R"({"inputs": "half", "float_args": 1, "without_amp": "float16", "output": "float16", "op_receives": ["float32"]})", 0, 1,
     0},
    {"received", "sum",
     R"({"inputs": "half", "float_args": 1, "without_amp": "float16", "output": "float16", "op_receives": ["float16"]})", 0, 1,
     0},
    // The output's dtype alone would not show the difference.
    {"received_before_a_bool", "lt",
     R"({"inputs": "float,half", "float_args": 2, "without_amp": "bool", "output": "bool", "op_receives": ["float16", "float16"]})",
     0, 1, 0},
    {"without_amp", "exp",
     R"({"inputs": "half", "float_args": 1, "without_amp": "float32", "output": "float32", "op_receives": ["float32"]})", 0, 1,
     0},
    {"right_error", "exp_", R"({"inputs": "half", "float_args": 1, "without_amp": "float16", "error": "NotImplementedError"})",
     1, 0, 0},
    {"error_that_does_not_come", "exp",
     R"({"inputs": "half", "float_args": 1, "without_amp": "float16", "error": "NotImplementedError"})", 0, 1, 0},
    {"other_error", "exp_", R"({"inputs": "half", "float_args": 1, "without_amp": "float16", "error": "RuntimeError"})", 0, 1,
     0},
    {"number_of_tensors", "exp",
     R"({"inputs": "half", "float_args": 2, "without_amp": "float16", "output": "float32", "op_receives": ["float32"]})", 0, 1,
     0},
    {"unknown_function", "unheard_of", R"({"inputs": "half", "float_args": 1, "without_amp": "float16"})", 0, 0, 1},
};

class O1Table : public ::testing::TestWithParam<Row> {};

TEST_P(O1Table, IsComparedWithTheLibrary) {
  const Row& row = GetParam();
  const std::string text = std::string(R"({"ops": [{"namespace": "torch", "list": "fp32", "op": ")") + row.op +
                           R"(", "cases": [)" + row.row + R"(]}], "modules": []})";
  Report report;
  replay_o1_table(Json::parse(text, "table"), report);
  EXPECT_EQ(report.passed(), row.passed);
  EXPECT_EQ(report.failed(), row.failed);
  EXPECT_EQ(report.skipped(), row.skipped);
}

INSTANTIATE_TEST_SUITE_P(Rows, O1Table, ::testing::ValuesIn(kRows), [](const auto& test) { return test.param.name; });

struct Module {
  const char* name;
  const char* row;
  int passed;
};

void PrintTo(const Module& row, std::ostream* out) { *out << row.name; }

class O1ModuleTable : public ::testing::TestWithParam<Module> {};

TEST_P(O1ModuleTable, IsComparedWithTheLibrary) {
  Report report;
  replay_o1_table(Json::parse(std::string(R"({"ops": [], "modules": [)") + GetParam().row + "]}", "table"), report);
  EXPECT_EQ(report.passed(), GetParam().passed);
  EXPECT_EQ(report.failed(), 1 - GetParam().passed);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, O1ModuleTable,
    ::testing::Values(
        Module{"right", R"({"module": "Linear", "weights": "float32", "input": "float", "output": "float16"})", 1},
        Module{"output", R"({"module": "Linear", "weights": "float32", "input": "float", "output": "float32"})", 0},
        Module{"number", R"({"module": "ReLU", "weights": "float32", "input": "half", "output": ["float16", "float16"]})", 0}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace oracle
