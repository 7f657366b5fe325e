#include "support.h"

namespace {

using namespace amp_C_test;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kHalf, at::kBFloat16};

class ElementwiseDtypes : public testing::TestWithParam<std::tuple<at::ScalarType, at::ScalarType>> {};

// K-SCALE: float32 arithmetic, one rounding.
TEST_P(ElementwiseDtypes, ScaleIsTheFloat32Product) {
  const auto [in_dtype, out_dtype] = GetParam();
  const Tensors in = random_list(in_dtype);
  const Tensors out = zeros_list(out_dtype);
  const at::Tensor noop = flag();
  multi_tensor_scale_cuda(kChunk, noop, {in, out}, 0.3f);
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(at::equal(out[i], in[i].to(at::kFloat).mul(0.3f).to(out_dtype))) << i;
  }
  EXPECT_EQ(noop.item<int>(), 0);
}

// K-AXPBY
TEST_P(ElementwiseDtypes, AxpbyIsTheRoundedSum) {
  const auto [x_dtype, out_dtype] = GetParam();
  const Tensors x = random_list(x_dtype);
  const Tensors y = random_list(at::kFloat);
  const Tensors out = zeros_list(out_dtype);
  multi_tensor_axpby_cuda(kChunk, flag(), {x, y, out}, 0.7f, -1.3f, -1);
  const double a = 0.7f, b = -1.3f;
  Tensors expected;
  for (size_t i = 0; i < x.size(); ++i) expected.push_back(x[i].to(at::kDouble) * a + y[i].to(at::kDouble) * b);
  expect_near(out, expected);
}

INSTANTIATE_TEST_SUITE_P(, ElementwiseDtypes, testing::Combine(testing::ValuesIn(kDtypes), testing::ValuesIn(kDtypes)),
                         [](const auto& test) {
                           return std::string(toString(std::get<0>(test.param))) + toString(std::get<1>(test.param));
                         });

TEST(Elementwise, ScaleWorksInPlace) {
  const Tensors list = random_list(at::kHalf);
  const Tensors before = clones(list);
  multi_tensor_scale_cuda(kChunk, flag(), {list, list}, 2.0f);
  for (size_t i = 0; i < list.size(); ++i) EXPECT_TRUE(at::equal(list[i], before[i] * 2)) << i;
}

TEST(Elementwise, AxpbyWorksInPlaceOfEitherInput) {
  const Tensors x = random_list(at::kFloat);
  const Tensors y = random_list(at::kFloat);
  Tensors sums;
  for (size_t i = 0; i < x.size(); ++i) sums.push_back(x[i] + y[i]);
  const Tensors into_x = clones(x);
  multi_tensor_axpby_cuda(kChunk, flag(), {into_x, y, into_x}, 1.0f, 1.0f, -1);
  expect_equal(into_x, sums);
  multi_tensor_axpby_cuda(kChunk, flag(), {x, y, y}, 1.0f, 1.0f, -1);
  expect_equal(y, sums);
}

TEST(Elementwise, ResultsDoNotDependOnTheChunkSize) {
  const Tensors in = random_list(at::kFloat);
  const Tensors whole = zeros_list(at::kHalf);
  const Tensors bits = zeros_list(at::kHalf);
  multi_tensor_scale_cuda(kChunk, flag(), {in, whole}, 0.3f);
  multi_tensor_scale_cuda(1, flag(), {in, bits}, 0.3f);
  expect_equal(bits, whole);
}

}  // namespace
