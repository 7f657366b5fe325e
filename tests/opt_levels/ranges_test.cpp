#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <limits>

#include "opt_levels/resolve.h"
#include "tests/opt_levels/errors.h"

// Values that Apex takes without a look, and that can only be mistakes.
namespace apex::opt_levels::testing {
namespace {

using Options = InitializeOptions;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct RangeRow {
  const char* name;
  Options options;
  std::vector<const char*> message;
};

void PrintTo(const RangeRow& row, std::ostream* out) { *out << row.name; }

const RangeRow kRangeRows[] = {
    {"num_losses_zero", Options().num_losses(0), {"num_losses=0", "1 or more"}},
    {"num_losses_negative", Options().num_losses(-2), {"num_losses=-2"}},
    {"verbosity_negative", Options().verbosity(-1), {"verbosity=-1", "0 (silent)"}},
    {"loss_scale_zero", Options().loss_scale(0), {"loss_scale=0.0", "positive finite"}},
    {"loss_scale_negative", Options().loss_scale("-8"), {"loss_scale=-8.0"}},
    {"loss_scale_infinite", Options().loss_scale(kInf), {"loss_scale=inf"}},
    {"loss_scale_nan", Options().loss_scale(kNan), {"loss_scale=nan"}},
    {"loss_scale_above_float32", Options().loss_scale(1e39), {"loss_scale=1", "positive finite", "float32"}},
    {"loss_scale_below_float32", Options().loss_scale(1e-46), {"loss_scale=1", "float32"}},
    {"min_zero", Options().min_loss_scale(0), {"min_loss_scale=0.0"}},
    {"min_nan", Options().min_loss_scale(kNan), {"min_loss_scale=nan"}},
    {"max_negative", Options().max_loss_scale(-4), {"max_loss_scale=-4.0"}},
    {"max_infinite", Options().max_loss_scale(kInf), {"max_loss_scale=inf"}},
    {"min_above_max", Options().min_loss_scale(8).max_loss_scale(4), {"min_loss_scale=8.0", "max_loss_scale=4.0"}},
    {"min_above_default_max", Options().min_loss_scale(33554432), {"min_loss_scale=33554432.0", "max_loss_scale=16777216.0"}},
    {"integer_model", Options().cast_model_type(c10::kLong), {"cast_model_type=Long", "float16, bfloat16 or float32"}},
    {"integer_outputs", Options().cast_model_outputs(c10::kInt), {"cast_model_outputs=Int", "float16"}},
};

class BadValue : public ::testing::TestWithParam<RangeRow> {};

TEST_P(BadValue, IsAValueErrorThatNamesIt) {
  const CallResult result = result_of([] { resolve("O2", GetParam().options); });
  EXPECT_EQ(result.outcome, Outcome::value_error) << result.message;
  for (const char* part : GetParam().message) expect_mentions(result.message, part);
}

INSTANTIATE_TEST_SUITE_P(Rows, BadValue, ::testing::ValuesIn(kRangeRows), [](const auto& test) { return test.param.name; });

TEST(ValueAtTheEdge, IsAccepted) {
  constexpr double kSmallest = std::numeric_limits<float>::min();
  const Settings settings =
      resolve("O2", Options().num_losses(1).verbosity(0).min_loss_scale(4).max_loss_scale(4).loss_scale(kSmallest));
  EXPECT_EQ(settings.num_losses, 1);
  EXPECT_EQ(settings.verbosity, 0);
  EXPECT_EQ(settings.min_loss_scale, 4.0);
  EXPECT_EQ(settings.max_loss_scale, 4.0);
  EXPECT_EQ(settings.properties.loss_scale.value, kSmallest);
}

}  // namespace
}  // namespace apex::opt_levels::testing
