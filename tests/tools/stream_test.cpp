#include "kernels/stream.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace {

using namespace bench::kernels;

const Case kShapes{"", {{1}, {33}, {70001}, {131072}}};

class Stream : public testing::TestWithParam<std::tuple<bool, bool>> {};

// The bound works on the tensors that are measured, so it must leave what optimizers read as it is.
TEST_P(Stream, KeepsReadAndUpdatedTensorsAndZeroesWrittenOnes) {
  const auto read = random(kShapes, at::kHalf, at::kCPU), updated = random(kShapes, at::kFloat, at::kCPU);
  const auto written = filled(kShapes, at::kBFloat16, at::kCPU, 1);
  Tensors before;
  for (const auto& list : {read, updated}) {
    for (const auto& tensor : list) before.push_back(tensor.clone());
  }
  const auto [fetches, past_caches] = GetParam();
  stream({{{read, Access::read}, {updated, Access::update}, {written, Access::write}}}, {fetches, past_caches})();
  for (size_t i = 0; i < kShapes.shapes.size(); ++i) {
    EXPECT_TRUE(read[i].equal(before[i]));
    EXPECT_TRUE(updated[i].equal(before[kShapes.shapes.size() + i]));
    EXPECT_EQ(written[i].count_nonzero().item<int64_t>(), 0) << written[i].numel();
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<bool, bool>>& test) {
  const auto [fetches, past_caches] = test.param;
  return std::string(fetches ? "Fetched" : "LeftToTheProcessor") + (past_caches ? "PastCaches" : "");
}

INSTANTIATE_TEST_SUITE_P(Ways, Stream, testing::Combine(testing::Bool(), testing::Bool()), name_of);

TEST(StreamBytes, AreReadOnceAndWrittenOnce) {
  const Case shapes{"", {{10}}};
  const auto half = random(shapes, at::kHalf, at::kCPU), full = random(shapes, at::kFloat, at::kCPU);
  EXPECT_EQ(bytes_of({{{half, Access::read}, {full, Access::update}}, {{half, Access::write}}}), 20 + 80 + 20);
}

}  // namespace
