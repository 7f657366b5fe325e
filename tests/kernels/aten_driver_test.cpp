// The driver made of ATen operators gives the native CPU driver's results; also on a GPU if there is one.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/aten_fallback.h"
#include "kernels/cpu/kernels.h"
#include "tests/kernels/support.h"
#include "tests/needs_gpus.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
namespace plan = kernels::plan;
using kernels::CheckArg;
using plan::Access;

class AtenDriver : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(AtenDriver, ScalesToTheSameBits) {
  const Tensors in = random_list(GetParam());
  for (const at::ScalarType out_dtype : dtypes()) {
    const Tensors native = outputs_for(in, out_dtype);
    const Tensors out = outputs_for(in, out_dtype);
    kernels::multi_tensor_scale(clear_flag(), in, native, 0.37);
    for (const auto& group : plan::make_groups({{"in", in, Access::read}, {"out", out, Access::write}})) {
      EXPECT_FALSE(kernels::aten::scale(group, in, out, 0.37).item<bool>());
    }
    EXPECT_TRUE(same_bits(out, native)) << out_dtype;
  }
}

TEST_P(AtenDriver, AddsToTheSameBits) {
  const Tensors x = random_list(GetParam());
  for (const at::ScalarType out_dtype : dtypes()) {
    const Tensors y = random_list(out_dtype);
    const Tensors native = outputs_for(x, out_dtype);
    const Tensors out = outputs_for(x, out_dtype);
    kernels::multi_tensor_axpby(clear_flag(), x, y, native, 0.75, -1.3, CheckArg::both);
    for (const auto& group : plan::make_groups({{"x", x, Access::read}, {"y", y, Access::read}, {"out", out, Access::write}})) {
      EXPECT_FALSE(kernels::aten::axpby(group, x, y, out, 0.75, -1.3, CheckArg::both).item<bool>());
    }
    EXPECT_TRUE(same_bits(out, native)) << out_dtype;
  }
}

TEST_P(AtenDriver, CopiesToTheSameBits) {
  const Tensors from = random_list(GetParam());
  for (const at::ScalarType to_dtype : dtypes()) {
    const Tensors native = outputs_for(from, to_dtype);
    const Tensors to = outputs_for(from, to_dtype);
    kernels::multi_tensor_copy(from, native);
    for (const auto& group : plan::make_groups({{"from", from, Access::read}, {"to", to, Access::write}})) {
      kernels::aten::copy(group, from, to);
    }
    EXPECT_TRUE(same_bits(to, native)) << to_dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AtenDriver, ::testing::ValuesIn(dtypes()), param_name<at::ScalarType>);

class AtenNorm : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(AtenNorm, SumsSquaresWithinTheBoundsOfBothOrders) {
  const Tensors in = random_list(GetParam());
  const auto groups = plan::make_groups({{"in", in, Access::read}});
  ASSERT_EQ(groups.size(), 1u);
  const at::Tensor native = kernels::cpu::sums_of_squares(groups[0], in.size(), 1.0);
  const at::Tensor sums = kernels::aten::sums_of_squares(groups[0], in, at::Tensor());
  // A native sum is within 2 float32 roundings of the exact one: of a square and of its chunk (rules/rule.h). at::sum adds a
  // chunk by cascade summation, where each value takes part in fewer than 128 rounded additions.
  EXPECT_TRUE(at::allclose(sums, native, /*rtol=*/(2 + 128) * 0x1p-24, /*atol=*/0));
  EXPECT_EQ(sums[0].item<double>(), 0.0) << "the empty tensor";
}

TEST_P(AtenNorm, OverflowsLikeTheNativeDriver) {
  if (GetParam() == at::kHalf) {
    // The sum of float16 squares over a chunk never overflows float32.
    const Tensors in = {at::full({65536}, 65504.0, at::kHalf)};
    EXPECT_TRUE(std::isfinite(
        kernels::aten::sums_of_squares(plan::make_groups({{"in", in, Access::read}})[0], in, at::Tensor())[0].item<double>()));
    return;
  }
  const double value = GetParam() == at::kDouble ? 1e155 : 1.5e19;
  const Tensors in = {at::full({2}, value, GetParam())};
  const auto group = plan::make_groups({{"in", in, Access::read}})[0];
  EXPECT_EQ(kernels::aten::sums_of_squares(group, in, at::Tensor())[0].item<double>(), INFINITY);
  EXPECT_EQ(kernels::cpu::sums_of_squares(group, 1, 1.0)[0].item<double>(), INFINITY);
}

TEST_P(AtenDriver, UnscalesToTheSameBits) {
  const Tensors in = random_list(GetParam());
  const at::Tensor inv_scale = at::full({1}, 0.37, at::kFloat);
  for (const at::ScalarType out_dtype : dtypes()) {
    const Tensors native = outputs_for(in, out_dtype), out = outputs_for(in, out_dtype);
    kernels::multi_tensor_unscale(clear_flag(), in, native, inv_scale);
    for (const auto& group : plan::make_groups({{"in", in, Access::read}, {"out", out, Access::write}})) {
      EXPECT_FALSE(kernels::aten::unscale(group, in, out, inv_scale).item<bool>());
      EXPECT_FALSE(kernels::aten::has_nonfinite(group, in).item<bool>());
    }
    EXPECT_TRUE(same_bits(out, native)) << out_dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AtenNorm, ::testing::ValuesIn(dtypes()), param_name<at::ScalarType>);

// Sums of every magnitude: normal in float32, subnormal, and beyond its range.
at::Tensor sums_of_all_sizes() {
  const at::Tensor digits = random_values(20000, at::kDouble).abs().add(0.5);
  const at::Tensor exponents = at::linspace(-160, 1000, digits.numel(), at::kDouble).floor();
  const at::Tensor special =
      at::tensor({0.0, 1.0, 4.0, 0x1p-149, 0x1.fffffep127, 0x1.ffffffp127, 0x1p1023, INFINITY, NAN}, at::kDouble);
  // Squares of the midpoints between adjacent float32 values: their roots are as close to midpoints as possible.
  const at::Tensor halves = at::arange(1000, at::kDouble).mul(2).add(1).mul(0x1p-24).add(1).square();
  return at::cat({digits.mul(at::exp2(exponents)), special, halves});
}

// 2^24 + 63 is no float32 value.
TEST(AtenNorms, AddUpTheSumsOfChunksInFloat64) {
  const at::Tensor values = at::zeros({64 * plan::kChunkSize});
  const at::Tensor firsts = values.view({64, plan::kChunkSize}).select(1, 0);
  firsts.fill_(1);
  firsts[0] = 4096;
  const Tensors in = {values};
  const auto groups = plan::make_groups({{"in", in, Access::read}});
  EXPECT_EQ(kernels::aten::sums_of_squares(groups[0], in, at::Tensor()).item<double>(), 0x1p24 + 63);
}

// What norms over several devices are put together by.
TEST(AtenNorms, HaveTheBitsOfTheNativeDriver) {
  const at::Tensor sums = sums_of_all_sizes();
  EXPECT_TRUE(same_bits(kernels::aten::roots_of(sums), kernels::cpu::roots_of(sums)));
  for (const int64_t count : {0, 1, 3, 511, 512, 513, 5000}) {
    const at::Tensor some = random_values(count, at::kDouble).abs();
    const double expected = kernels::cpu::ordered_sum({some.const_data_ptr<double>(), static_cast<size_t>(count)});
    EXPECT_EQ(kernels::aten::ordered_sum(some).item<double>(), expected) << count;
  }
}

TEST(AtenFlags, ReportNonFiniteInputsAsRequested) {
  for (const double value : {INFINITY, -INFINITY, NAN}) {
    Tensors bad = {at::ones({5}), at::ones({40})};
    bad[1][39] = value;
    const Tensors good = {at::ones({5}), at::ones({40})};
    const Tensors out = outputs_for(bad, at::kFloat);
    const auto bad_x = plan::make_groups({{"x", bad, Access::read}, {"y", good, Access::read}, {"out", out, Access::write}})[0];
    EXPECT_TRUE(kernels::aten::scale(bad_x, bad, out, 1.0).item<bool>());
    EXPECT_TRUE(kernels::aten::unscale(bad_x, bad, out, at::ones({1})).item<bool>());
    EXPECT_TRUE(kernels::aten::has_nonfinite(bad_x, bad).item<bool>());
    EXPECT_TRUE(kernels::aten::axpby(bad_x, bad, good, out, 1, 1, CheckArg::x).item<bool>());
    EXPECT_FALSE(kernels::aten::axpby(bad_x, bad, good, out, 1, 1, CheckArg::y).item<bool>());
    EXPECT_TRUE(kernels::aten::axpby(bad_x, bad, good, out, 1, 1, CheckArg::both).item<bool>());
    EXPECT_TRUE(kernels::aten::axpby(bad_x, good, bad, out, 1, 1, CheckArg::y).item<bool>());
  }
}

// Tensors without storage run every operator's shape and dtype rules: the path of a device without a native driver.
TEST(OtherDevices, AreAcceptedByEveryCall) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const Tensors in = {at::ones({70000}, meta.dtype(at::kHalf)), at::ones({0}, meta.dtype(at::kHalf)), at::ones({3}, meta)};
  const Tensors out = {at::ones({70000}, meta), at::ones({0}, meta), at::ones({3}, meta)};
  const at::Tensor flag = at::zeros({1}, meta.dtype(at::kInt));
  kernels::multi_tensor_scale(flag, in, out, 0.5);
  kernels::multi_tensor_unscale(flag, in, out, at::ones({1}, meta));
  kernels::multi_tensor_check_finite(flag, in);
  kernels::multi_tensor_axpby(flag, in, out, out, 1.0, 1.0, CheckArg::x);
  kernels::multi_tensor_copy(out, in);
  const auto [norm, norms] = kernels::multi_tensor_l2norm(flag, in, true);
  EXPECT_EQ(norm.device(), c10::Device(at::kMeta));
  EXPECT_EQ(norms.sizes(), at::IntArrayRef({3}));
}

TEST(Cuda, CallsGiveTheCpusResults) {
  APEX_CPP_NEEDS_GPUS(1);
  const Tensors in = random_list(at::kHalf);
  const Tensors out = outputs_for(in, at::kFloat);
  Tensors gpu_in, gpu_out;
  for (const at::Tensor& tensor : in) gpu_in.push_back(tensor.to(at::kCUDA));
  for (const at::Tensor& tensor : out) gpu_out.push_back(tensor.to(at::kCUDA));
  const at::Tensor flag = clear_flag().to(at::kCUDA);
  kernels::multi_tensor_scale(clear_flag(), in, out, 0.37);
  kernels::multi_tensor_scale(flag, gpu_in, gpu_out, 0.37);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(same_bits(gpu_out[i].cpu(), out[i])) << i;
  EXPECT_EQ(flag.item<int>(), 0);
  gpu_in.back()[0] = INFINITY;
  kernels::multi_tensor_scale(flag, gpu_in, gpu_out, 0.37);
  EXPECT_EQ(flag.item<int>(), 1);
}

}  // namespace
}  // namespace kernels_test
