// The flag of each function: W sets it, R is stopped by it, - ignores it (K-*, the column "flag").
#include "functions.h"

namespace {

using namespace amp_C_test;

class Flags : public testing::TestWithParam<Function> {
 protected:
  static TensorLists lists() {
    TensorLists lists;
    for (size_t i = 0; i < GetParam().depth; ++i) lists.push_back(positive_list(at::kFloat));
    return lists;
  }
};

TEST_P(Flags, FiniteValuesDoNotSetTheFlag) {
  const at::Tensor noop = flag();
  GetParam().call(noop, lists());
  EXPECT_EQ(noop.item<int>(), 0);
}

TEST_P(Flags, AreSetByNonFiniteValuesOfTheCheckedLists) {
  for (size_t list = 0; list < GetParam().depth; ++list) {
    const bool searched = std::count(GetParam().searched.begin(), GetParam().searched.end(), list) > 0;
    // Moments affect the updates and so their norms, in Apex as well.
    if (!searched && GetParam().name.rfind("lamb", 0) == 0) continue;
    for (const double value : std::vector<double>{INFINITY, -INFINITY, NAN}) {
      const TensorLists l = lists();
      l[list].at(l[list].size() - 2)[65536] = value;  // the last element, after a full chunk
      const at::Tensor noop = flag();
      GetParam().call(noop, l);
      EXPECT_EQ(noop.item<int>(), searched ? 1 : 0) << value << " in list " << list;
    }
  }
}

TEST_P(Flags, OnlySomeFunctionsStopAtASetFlag) {
  const TensorLists stopped = lists();
  const TensorLists before = clones(stopped);
  const TensorLists free = clones(stopped);
  const at::Tensor noop = flag(1);
  GetParam().call(noop, stopped);
  GetParam().call(flag(), free);
  expect_equal(stopped, GetParam().stops ? before : free);
  EXPECT_EQ(noop.item<int>(), 1) << "flags are never reset";
}

INSTANTIATE_TEST_SUITE_P(, Flags, testing::ValuesIn(functions()), [](const auto& test) { return test.param.name; });

// K-SCALE: an overflow of the product is not reported.
TEST(FlagOfScale, IgnoresAnOverflowOfTheProduct) {
  const Tensors in = {at::full({3}, 60000.0)}, out = {at::empty({3}, at::kHalf)};
  const at::Tensor noop = flag();
  multi_tensor_scale_cuda(kChunk, noop, {in, out}, 2);
  EXPECT_TRUE(out[0].isinf().all().item<bool>());
  EXPECT_EQ(noop.item<int>(), 0);
}

// K-L2
TEST(FlagOfL2Norm, ReportsASumOfSquaresThatOverflows) {
  const at::Tensor noop = flag();
  multi_tensor_l2norm_cuda(kChunk, noop, {{at::full({3}, 3e19)}}, false);
  EXPECT_EQ(noop.item<int>(), 1);
}

}  // namespace
