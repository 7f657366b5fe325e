// multi_tensor_l2norm: accuracy, order of summation, shape and device of the results (K-L2, BUG-22).
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;

// rules/rule.h: three roundings of at most 2^-24 in a sum of squares, which the root halves, and the root's own rounding.
constexpr double kBound = 1.001 * (3.0 / 2 + 1) * 0x1p-24;
// float64 arithmetic up to the sum, which is rounded before the root.
constexpr double kDoubleBound = 1.001 * (1.0 / 2 + 1) * 0x1p-24;

double exact_norm(const at::Tensor& tensor) { return std::sqrt(tensor.to(at::kDouble).square().sum().item<double>()); }

double exact_norm(const Tensors& list) {
  double sum = 0;
  for (const at::Tensor& tensor : list) sum += tensor.to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum);
}

class L2Norm : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  double bound() const { return GetParam() == at::kDouble ? kDoubleBound : kBound; }
};

TEST_P(L2Norm, IsWithinTheDerivedBound) {
  for (const int64_t offset : {0, 1, 3}) {
    const Tensors in = random_list(GetParam(), offset);
    const at::Tensor flag = clear_flag();
    const auto [norm, norms] = kernels::multi_tensor_l2norm(flag, in, true);
    EXPECT_EQ(flag.item<int>(), 0);
    EXPECT_NEAR(norm.item<float>(), exact_norm(in), bound() * exact_norm(in));
    ASSERT_EQ(norms.numel(), static_cast<int64_t>(in.size()));
    for (size_t i = 0; i < in.size(); ++i) {
      const double expected = exact_norm(in[i]);
      EXPECT_NEAR(norms[static_cast<int64_t>(i)].item<float>(), expected, bound() * expected) << in[i].numel();
    }
  }
}

TEST_P(L2Norm, HasTheSameBitsAtAnyNumberOfThreads) {
  const Tensors in = random_list(GetParam());
  std::vector<at::Tensor> norms;
  for (const int count : {1, 2, 4}) {
    const Threads threads(count);
    const auto [total, each] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
    norms.push_back(at::cat({total, each}));
  }
  EXPECT_TRUE(same_bits(norms[1], norms[0]));
  EXPECT_TRUE(same_bits(norms[2], norms[0]));
}

TEST_P(L2Norm, DoesNotDependOnAlignment) {
  const at::Tensor values = random_values(65536 + 700, GetParam());
  const at::Tensor expected = std::get<0>(kernels::multi_tensor_l2norm(clear_flag(), Tensors{values}, false));
  for (const int64_t offset : {1, 2, 3, 7, 15}) {
    const at::Tensor moved = at::empty({values.numel() + offset}, values.options()).narrow(0, offset, values.numel());
    moved.copy_(values);
    EXPECT_TRUE(same_bits(std::get<0>(kernels::multi_tensor_l2norm(clear_flag(), Tensors{moved}, false)), expected)) << offset;
  }
}

TEST_P(L2Norm, DoesNotChangeItsInputs) {
  const Tensors in = random_list(GetParam());
  Tensors before;
  for (const at::Tensor& tensor : in) before.push_back(tensor.clone());
  kernels::multi_tensor_l2norm(clear_flag(), in, true);
  EXPECT_TRUE(same_bits(in, before));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, L2Norm, ::testing::ValuesIn(dtypes()), param_name<at::ScalarType>);

// A second implementation of the documented order of summation. Every driver must give its bits.
double folded(std::array<double, 512> lanes) {
  for (size_t width = 256; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

float chunk_sum(const float* values, int64_t size) {
  std::array<double, 512> lanes{};
  for (int64_t i = 0; i < size; ++i) {
    const volatile float square = values[i] * values[i];
    lanes[static_cast<size_t>(i % 512)] += square;
  }
  return static_cast<float>(folded(lanes));
}

float root(double sum) { return std::sqrt(static_cast<float>(sum)); }

double tensor_sum(const at::Tensor& tensor) {
  std::array<double, 512> lanes{};
  for (int64_t offset = 0, chunk = 0; offset < tensor.numel(); offset += 65536, ++chunk) {
    lanes[static_cast<size_t>(chunk % 512)] +=
        chunk_sum(tensor.data_ptr<float>() + offset, std::min<int64_t>(65536, tensor.numel() - offset));
  }
  return folded(lanes);
}

TEST(Norms, SumsInTheDocumentedOrder) {
  Tensors in = random_list(at::kFloat);
  for (int i = 0; i < 600; ++i) in.push_back(random_values(1 + i, at::kFloat));
  const auto [norm, norms] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
  std::array<double, 512> lanes{};
  for (size_t i = 0; i < in.size(); ++i) {
    const double sum = tensor_sum(in[i]);
    EXPECT_EQ(norms[static_cast<int64_t>(i)].item<float>(), root(sum)) << i;
    lanes[i % 512] += sum;
  }
  EXPECT_EQ(norm.item<float>(), root(folded(lanes)));
}

TEST(Norms, StaysAccurateOverManyEqualValues) {
  // A plain float32 summation of 16 Mi times 0.01 stops growing long before the end.
  const Tensors in = {at::full({16 << 20}, 0.1f)};
  const at::Tensor norm = std::get<0>(kernels::multi_tensor_l2norm(clear_flag(), in, false));
  EXPECT_NEAR(norm.item<float>(), exact_norm(in), kBound * exact_norm(in));
}

TEST(Norms, ReturnsFloat32TensorsOfOneAndOfListLength) {
  const Tensors in = {at::ones({3, 5}, at::kHalf), at::ones({2, 2}, at::kDouble), at::ones({})};
  const auto [norm, norms] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
  EXPECT_EQ(norm.sizes(), at::IntArrayRef({1}));
  EXPECT_EQ(norms.sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_EQ(norms.scalar_type(), at::kFloat);
  EXPECT_EQ(norm.item<float>(), std::sqrt(20.0f));
  EXPECT_EQ(norms[1].item<float>(), 2.0f);
}

TEST(Norms, ReturnsPerTensorNormsOnlyOnRequest) {
  const at::Tensor norms = std::get<1>(kernels::multi_tensor_l2norm(clear_flag(), Tensors{at::ones({3})}, false));
  EXPECT_EQ(norms.sizes(), at::IntArrayRef({0}));
}

TEST(Norms, OfNothingIsZero) {
  const auto [norm, norms] = kernels::multi_tensor_l2norm(clear_flag(), {}, true);
  EXPECT_EQ(norm.item<float>(), 0.0f);
  EXPECT_EQ(norms.numel(), 0);
}

TEST(Norms, OfEmptyTensorsIsZeroAtAnyPosition) {
  const at::Tensor full = at::full({2, 2}, 3.0f);
  const at::Tensor empty = at::empty({0});
  const auto [norm, norms] = kernels::multi_tensor_l2norm(clear_flag(), Tensors{empty, full, empty, full, empty}, true);
  EXPECT_TRUE(at::equal(norms, at::tensor({0.0f, 6.0f, 0.0f, 6.0f, 0.0f})));
  EXPECT_EQ(norm.item<float>(), std::sqrt(72.0f));
}

TEST(Norms, SquaresInFloat32) {
  // As in Apex: a square below the smallest float32 becomes 0.
  const Tensors in = {at::full({3}, 1e-30f)};
  EXPECT_EQ(std::get<0>(kernels::multi_tensor_l2norm(clear_flag(), in, false)).item<float>(), 0.0f);
}

TEST(Norms, AcceptATensorTwice) {
  const at::Tensor values = at::full({4}, 2.0f);
  EXPECT_EQ(std::get<0>(kernels::multi_tensor_l2norm(clear_flag(), Tensors{values, values}, false)).item<float>(),
            std::sqrt(32.0f));
}

}  // namespace
}  // namespace kernels_test
