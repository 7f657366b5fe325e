// Records compared with a loop over the values in float64; counts must be exact.
#include "tests/statistics/support.h"

namespace apex::test {
namespace {

struct Reference {
  amp::TensorStatistics record;
  long double sum = 0, sum_of_sizes = 0, sum_of_squares = 0;
  int64_t finite = 0;
};

Reference reference_of(const torch::Tensor& tensor) {
  const torch::Tensor values = tensor.detach().to(torch::kDouble).contiguous().flatten();
  Reference reference;
  amp::TensorStatistics& record = reference.record;
  record.numel = values.numel();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double x = values.const_data_ptr<double>()[i];
    if (std::isnan(x)) {
      ++record.nan;
    } else if (std::isinf(x)) {
      ++record.inf;
    } else {
      ++reference.finite;
      reference.sum += x, reference.sum_of_sizes += std::fabs(x), reference.sum_of_squares += static_cast<long double>(x) * x;
      record.abs_max = std::max(record.abs_max, std::fabs(x));
      x == 0 ? ++record.zeros : ++record.exponents[std::ilogb(x)];
    }
  }
  return reference;
}

void expect_matches(const amp::TensorStatistics& record, const torch::Tensor& tensor) {
  const Reference want = reference_of(tensor);
  EXPECT_EQ(record.numel, want.record.numel);
  EXPECT_EQ(record.zeros, want.record.zeros);
  EXPECT_EQ(record.inf, want.record.inf);
  EXPECT_EQ(record.nan, want.record.nan);
  EXPECT_EQ(record.exponents, want.record.exponents);
  EXPECT_EQ(record.abs_max, want.record.abs_max);
  // Additions between a value and its sum: 4096 in a lane, 5 folds, and one for each tile of 131072. Each rounds by at most
  // 2^-53 of a partial sum, which is at most the sum of magnitudes. One more rounding each for the square of a float64, the
  // quotient and the root, which halves the error of its argument.
  const auto steps = static_cast<double>(4096 + 5 + record.numel / 131072 + 3);
  const double bound = steps * 0x1p-53;
  const auto finite = static_cast<long double>(std::max<int64_t>(want.finite, 1));
  EXPECT_LE(std::fabs(static_cast<double>(record.mean - want.sum / finite)),
            bound * static_cast<double>(want.sum_of_sizes / finite));
  const auto norm = static_cast<double>(std::sqrt(want.sum_of_squares));
  EXPECT_LE(std::fabs(record.norm - norm), bound * norm);
}

TEST(StatisticsValues, MatchTheElementsAtEveryDtypeAndSize) {
  for (const auto dtype : statistics_dtypes()) {
    for (const int64_t size : {0, 1, 2, 31, 32, 33, 2047, 2048, 2049, 131071, 131072, 131073, 300001}) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << size);
      // Squares of the largest float64 values overflow, so the norm's values are smaller here.
      const torch::Tensor values =
          dtype == torch::kDouble ? wild_values(size, torch::kFloat, 7).to(dtype) : wild_values(size, dtype, 7);
      expect_matches(amp::statistics(std::vector<torch::Tensor>{values}).at(0), values);
    }
  }
}

TEST(StatisticsValues, SkipUndefinedTensorsOfAModule) {
  torch::nn::Linear model(torch::nn::LinearOptions(3, 2).bias(false));
  ASSERT_FALSE(model->bias.defined());
  const auto records = amp::statistics(*model);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].name, "weight");
  EXPECT_EQ(records[0].numel, 6);
}

TEST(StatisticsValues, CoverTheWholeRangeOfFloat64) {
  auto values = wild_values(50000, torch::kDouble, 8);
  values[0] = std::numeric_limits<double>::denorm_min();
  values[1] = std::numeric_limits<double>::max();
  values[2] = 0x1.8p-1060;
  const auto record = amp::statistics(std::vector<torch::Tensor>{values}).at(0);
  const auto want = reference_of(values).record;
  EXPECT_EQ(record.exponents, want.exponents);
  EXPECT_EQ(record.exponents.count(-1074), 1u);
  EXPECT_EQ(record.abs_max, std::numeric_limits<double>::max());
  EXPECT_EQ(record.norm, std::numeric_limits<double>::infinity());
}

TEST(StatisticsValues, MatchTheElementsWithFewExponents) {
  for (const auto dtype : statistics_dtypes()) {
    for (const int64_t size : {2047, 2048, 2049, 300001}) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << size);
      const auto values = tame_values(size, dtype, 7);
      expect_matches(amp::statistics(std::vector<torch::Tensor>{values}).at(0), values);
    }
  }
}

// As the gradient of an embedding whose words were not in the batch.
TEST(StatisticsValues, MatchTheElementsWithBlocksOfZeros) {
  for (const auto dtype : statistics_dtypes()) {
    SCOPED_TRACE(dtype);
    const auto zeros = torch::zeros({300000}, dtype);
    auto sparse = tame_values(300000, dtype, 7);
    sparse.slice(0, 1000, 250000).zero_();
    const auto records = amp::statistics(std::vector<torch::Tensor>{zeros, sparse});
    expect_matches(records.at(0), zeros);
    expect_matches(records.at(1), sparse);
    EXPECT_EQ(records.at(0).zeros, 300000);
  }
}

// Every float16 and bfloat16 value.
TEST(StatisticsValues, AreRightForEveryValueOf16Bits) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    const auto all = torch::arange(0, 65536, torch::kInt).to(torch::kShort).view(dtype);
    SCOPED_TRACE(dtype);
    expect_matches(amp::statistics(std::vector<torch::Tensor>{all}).at(0), all);
  }
}

TEST(StatisticsValues, OfFloat32IncludeSubnormalOnes) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const auto values = torch::tensor({tiny, -3 * tiny, 0x1p-127F, 0x1.fffffcp-127F, 0x1p-126F, -0.0F});
  const auto record = amp::statistics(std::vector<torch::Tensor>{values}).at(0);
  EXPECT_EQ(record.exponents, (std::map<int, int64_t>{{-149, 1}, {-148, 1}, {-127, 2}, {-126, 1}}));
  EXPECT_EQ(record.zeros, 1);
  expect_matches(record, values);
}

TEST(StatisticsValues, DoNotDependOnFlushingOfSubnormalNumbers) {
  const auto values = torch::full({100}, std::numeric_limits<float>::denorm_min());
  at::globalContext().setFlushDenormal(true);
  const auto record = amp::statistics(std::vector<torch::Tensor>{values}).at(0);
  at::globalContext().setFlushDenormal(false);
  EXPECT_EQ(record.exponents, (std::map<int, int64_t>{{-149, 100}}));
  EXPECT_EQ(record.zeros, 0);
}

TEST(StatisticsValues, MatchTheElementsForAnyLayout) {
  const auto base = wild_values(60 * 70, torch::kFloat, 9).view({60, 70});
  for (const auto& tensor : {base.t(), base.slice(0, 3, 50, 2), base.slice(1, 1, 69, 3), base[5][6], base[7].expand({40, 70}),
                             base.view({1, 60, 1, 70}).permute({3, 2, 1, 0}), base.slice(0, 60)}) {
    SCOPED_TRACE(tensor.sizes());
    expect_matches(amp::statistics(std::vector<torch::Tensor>{tensor}).at(0), tensor);
  }
}

// A view whose memory has the other sign.
TEST(StatisticsValues, OfANegatedViewAreThoseOfItsValues) {
  const auto values = tame_values(3000, torch::kFloat, 10).abs();
  const auto record = amp::statistics(std::vector<torch::Tensor>{at::_neg_view(values)}).at(0);
  EXPECT_LT(record.mean, 0);
  expect_matches(record, values.neg());
}

TEST(StatisticsValues, OfMixedListsKeepTheirOrder) {
  std::vector<torch::Tensor> tensors;
  for (int i = 0; i < 3000; ++i) {
    tensors.push_back(wild_values(i % 50, i % 7 == 0 ? torch::kBFloat16 : i % 5 == 0 ? torch::kHalf : torch::kFloat, 100 + i));
  }
  const auto records = amp::statistics(tensors);
  ASSERT_EQ(records.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); i += 13) expect_matches(records[i], tensors[i]);
  expect_matches(records.back(), tensors.back());
}

}  // namespace
}  // namespace apex::test
