#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "opt_levels/resolve.h"
#include "tests/opt_levels/errors.h"

// Apex's errors for arguments of `initialize`, recorded from its code: the rows of the reference table about levels and
// options.
namespace apex::opt_levels::testing {
namespace {

using Options = InitializeOptions;

struct ErrorTableRow {
  const char* id;
  const char* level;
  std::function<Options()> options;
  Outcome outcome;
  std::vector<const char*> message;
};

void PrintTo(const ErrorTableRow& row, std::ostream* out) { *out << row.id; }

const ErrorTableRow kErrorTableRows[] = {
    {"opt_level_zero", "00", [] { return Options(); }, Outcome::runtime_error, {"'00'", "letter"}},
    {"o1_cast_model_type",
     "O1",
     [] { return Options().cast_model_type(c10::kHalf); },
     Outcome::runtime_error,
     {"cast_model_type=float16", "O1", "FP32", "O2 or O3"}},
    {"o1_keep_bn",
     "O1",
     [] { return Options().keep_batchnorm_fp32(true); },
     Outcome::runtime_error,
     {"keep_batchnorm_fp32=true", "not allowed with O1"}},
    {"o1_master_weights",
     "O1",
     [] { return Options().master_weights(true); },
     Outcome::runtime_error,
     {"master_weights=true", "not allowed with O1"}},
    {"o2_patch",
     "O2",
     [] { return Options().patch_torch_functions(true); },
     Outcome::runtime_error,
     {"patch_torch_functions=true", "not allowed with O2", "O1"}},
    {"o2_patch_false_ok", "O2", [] { return Options().patch_torch_functions(false); }, Outcome::accepted, {}},
    {"keep_bn_bad_string",
     "O2",
     [] { return Options().keep_batchnorm_fp32("yes"); },
     Outcome::runtime_error,
     {"keep_batchnorm_fp32=\"yes\"", "bool", "\"True\"", "\"False\""}},
    {"loss_scale_bad_string",
     "O2",
     [] { return Options().loss_scale("big"); },
     Outcome::value_error,
     {"loss_scale=\"big\"", "not a number"}},
    {"loss_scale_string_ok", "O2", [] { return Options().loss_scale("64"); }, Outcome::accepted, {}},
};

class ApexErrorTable : public ::testing::TestWithParam<ErrorTableRow> {};

TEST_P(ApexErrorTable, GivesApexsErrors) {
  const ErrorTableRow& row = GetParam();
  const CallResult result = result_of([&] { resolve(row.level, row.options()); });
  EXPECT_EQ(result.outcome, row.outcome) << result.message;
  for (const char* part : row.message) expect_mentions(result.message, part);
}

INSTANTIATE_TEST_SUITE_P(Rows, ApexErrorTable, ::testing::ValuesIn(kErrorTableRows),
                         [](const auto& test) { return test.param.id; });

}  // namespace
}  // namespace apex::opt_levels::testing
