#include <gtest/gtest.h>

#include <apex_cpp/parallel/sharded/layout.h>

#include <vector>

namespace apex::parallel::detail {
namespace {

ParamSpec spec(size_t index, int64_t numel, at::ScalarType dtype = at::kFloat) {
  return {index, numel, at::kCPU, dtype, dtype, dtype};
}

std::vector<size_t> params_of(const BucketLayout& bucket) {
  std::vector<size_t> params;
  for (const Slot& slot : bucket.slots) params.push_back(slot.param);
  return params;
}

TEST(ShardLayout, EveryElementBelongsToOneRank) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const auto& bucket : lay_out({spec(0, 5), spec(1, 0), spec(2, 700), spec(3, 64), spec(4, 1)}, 2048, ranks)) {
      ASSERT_GE(bucket.shard_size * ranks, bucket.numel);
      for (const Slot& slot : bucket.slots) {
        int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Part part = bucket.part_of(slot, rank);
          if (part.numel == 0) continue;
          EXPECT_EQ(part.begin, next);
          EXPECT_EQ(part.begin % 32, 0) << "a group of moments in 8 bits belongs to one rank";
          EXPECT_EQ(rank * bucket.shard_size + part.in_shard, slot.begin + part.begin);
          EXPECT_LE(part.in_shard + part.numel, bucket.shard_size);
          next += part.numel;
        }
        EXPECT_EQ(next, slot.numel);
      }
    }
  }
}

TEST(ShardLayout, FillsBucketsFromTheLastParameter) {
  const auto buckets = lay_out({spec(0, 96), spec(1, 96), spec(2, 300), spec(3, 96), spec(4, 96)}, 768, 2);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(params_of(buckets[0]), (std::vector<size_t>{4, 3}));
  EXPECT_EQ(params_of(buckets[1]), (std::vector<size_t>{2}));  // larger than a bucket, so alone
  EXPECT_EQ(params_of(buckets[2]), (std::vector<size_t>{1, 0}));
}

TEST(ShardLayout, BucketsHaveOneDtypeAndTheOrderInWhichTheyFill) {
  const auto buckets =
      lay_out({spec(0, 32, at::kHalf), spec(1, 32), spec(2, 32, at::kHalf), spec(3, 32), spec(4, 32, at::kHalf)}, 128, 2);
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(params_of(buckets[0]), (std::vector<size_t>{3}));
  EXPECT_EQ(params_of(buckets[1]), (std::vector<size_t>{4, 2}));
  EXPECT_EQ(params_of(buckets[2]), (std::vector<size_t>{1}));
  EXPECT_EQ(params_of(buckets[3]), (std::vector<size_t>{0}));
}

TEST(ShardLayout, CountsElementsIn64Bits) {
  const int64_t billion = int64_t{1} << 30;
  const auto buckets = lay_out({spec(0, 3 * billion), spec(1, 5 * billion)}, 40 * billion, 4);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].shard_size, 2 * billion);
  const Part last = buckets[0].part_of(buckets[0].slots[1], 3);
  EXPECT_EQ(last.begin, billion);
  EXPECT_EQ(last.numel, 2 * billion);
}

}  // namespace
}  // namespace apex::parallel::detail
