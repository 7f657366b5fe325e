// Memory layouts, in-place work, empty tensors and autograd (MTA-02, MTA-04, MTA-06, BUG-22).
#include <gtest/gtest.h>

#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
using kernels::CheckArg;

TEST(Layout, ChannelsLastIsWalkedInMemoryOrder) {
  const at::Tensor in = at::randn({3, 5, 7, 11}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor out = at::empty_like(in, in.options().dtype(at::kHalf));
  kernels::multi_tensor_scale(clear_flag(), Tensors{in}, Tensors{out}, 0.37);
  EXPECT_TRUE(out.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(same_bits(out, expected_scale(in, 0.37, at::kHalf)));
}

TEST(Layout, ChannelsLast3dAndTransposedTensorsAreDenseToo) {
  const Tensors from = {at::randn({2, 3, 4, 5, 6}).contiguous(at::MemoryFormat::ChannelsLast3d), at::randn({40, 30}).t()};
  const Tensors to = {at::empty_like(from[0], at::kBFloat16), at::empty_like(from[1], at::kBFloat16)};
  kernels::multi_tensor_copy(from, to);
  for (size_t i = 0; i < from.size(); ++i) EXPECT_TRUE(same_bits(to[i], from[i].to(at::kBFloat16)));
}

TEST(Layout, ContiguousTensorsMayHaveDifferentShapes) {
  const at::Tensor in = at::randn({6, 4});
  const at::Tensor out = at::zeros({24});
  kernels::multi_tensor_copy(Tensors{in}, Tensors{out});
  EXPECT_TRUE(same_bits(out, in.flatten()));
}

TEST(Layout, StridesOfDimensionsOfSizeOneAreIgnored) {
  const at::Tensor from = at::randn({1, 8, 3}).transpose(1, 2);
  const at::Tensor to = at::empty_strided({1, 3, 8}, {77, 1, 3});
  kernels::multi_tensor_copy(Tensors{from}, Tensors{to});
  EXPECT_TRUE(same_bits(to, from));
}

TEST(Layout, HalfMayOverwriteBFloat16) {
  // Another dtype with the same element size: a view of the same memory.
  const at::Tensor in = random_values(70000, at::kBFloat16);
  const at::Tensor out = in.view(at::kHalf);
  const at::Tensor expected = in.to(at::kHalf).clone();
  kernels::multi_tensor_copy(Tensors{in}, Tensors{out});
  EXPECT_TRUE(same_bits(out, expected));
}

class InPlace : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(InPlace, ScaleMayWriteItsInput) {
  const Tensors in = random_list(GetParam(), 1);
  Tensors expected;
  for (const at::Tensor& tensor : in) expected.push_back(expected_scale(tensor, 0.37, GetParam()));
  kernels::multi_tensor_scale(clear_flag(), in, in, 0.37);
  EXPECT_TRUE(same_bits(in, expected));
}

TEST_P(InPlace, AxpbyMayWriteEitherInput) {
  for (const bool write_x : {true, false}) {
    const Tensors x = random_list(GetParam());
    const Tensors y = random_list(GetParam());
    Tensors expected;
    for (size_t i = 0; i < x.size(); ++i) expected.push_back(expected_axpby(x[i], y[i], 0.5, 1.7, GetParam()));
    kernels::multi_tensor_axpby(clear_flag(), x, y, write_x ? x : y, 0.5, 1.7, CheckArg::both);
    EXPECT_TRUE(same_bits(write_x ? x : y, expected));
  }
}

TEST_P(InPlace, AxpbyAcceptsOneTensorForAllItsArguments) {
  const Tensors x = random_list(GetParam());
  Tensors expected;
  for (const at::Tensor& tensor : x) expected.push_back(expected_axpby(tensor, tensor, 0.5, 1.7, GetParam()));
  kernels::multi_tensor_axpby(clear_flag(), x, x, x, 0.5, 1.7, CheckArg::both);
  EXPECT_TRUE(same_bits(x, expected));
}

TEST_P(InPlace, CopyOntoItselfChangesNothing) {
  const Tensors in = random_list(GetParam());
  Tensors before;
  for (const at::Tensor& tensor : in) before.push_back(tensor.clone());
  kernels::multi_tensor_copy(in, in);
  EXPECT_TRUE(same_bits(in, before));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, InPlace, ::testing::ValuesIn(dtypes()), param_name<at::ScalarType>);

// An empty tensor must neither stop nor disturb the tensors around it, wherever it stands and however many there are.
TEST(EmptyTensors, AreSkippedAtAnyPosition) {
  const at::Tensor empty = at::empty({0, 3}, at::kHalf);
  for (const size_t count : {1u, 2u, 110u, 111u}) {
    for (const size_t where : {size_t{0}, count / 2, count}) {
      Tensors in(count, at::Tensor());
      for (at::Tensor& tensor : in) tensor = at::ones({5}, at::kHalf);
      in.insert(in.begin() + static_cast<std::ptrdiff_t>(where), empty);
      const Tensors out = outputs_for(in, at::kFloat);
      const at::Tensor flag = clear_flag();
      kernels::multi_tensor_scale(flag, in, out, 3.0);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(out[i].eq(3).all().item<bool>()) << i;
      EXPECT_EQ(flag.item<int>(), 0);
    }
  }
}

TEST(EmptyTensors, AloneAreANoOp) {
  const Tensors empty = {at::empty({0}), at::empty({4, 0})};
  const at::Tensor flag = clear_flag();
  kernels::multi_tensor_scale(flag, empty, empty, 3.0);
  kernels::multi_tensor_axpby(flag, empty, empty, empty, 1.0, 1.0, CheckArg::both);
  kernels::multi_tensor_copy(empty, empty);
  EXPECT_EQ(flag.item<int>(), 0);
}

TEST(Autograd, WritesToALeafAreNotRecordedButCounted) {
  const at::Tensor param = at::zeros({5}, at::kHalf).requires_grad_();
  const auto version = param._version();
  kernels::multi_tensor_copy(Tensors{at::ones({5})}, Tensors{param});
  EXPECT_TRUE(param.is_leaf());
  EXPECT_TRUE(param.eq(1).all().item<bool>());
  EXPECT_GT(param._version(), version);
}

TEST(Autograd, NoticesThatASavedTensorWasOverwritten) {
  const at::Tensor x = at::ones({5}).requires_grad_();
  const at::Tensor weight = at::ones({5});
  const at::Tensor loss = x.mul(weight).sum();
  kernels::multi_tensor_scale(clear_flag(), Tensors{weight}, Tensors{weight}, 2.0);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Autograd, OutputsOfTheNormNeedNoGradient) {
  const Tensors in = {at::ones({5}).requires_grad_()};
  EXPECT_FALSE(std::get<0>(kernels::multi_tensor_l2norm(clear_flag(), in, false)).requires_grad());
}

}  // namespace
}  // namespace kernels_test
