// scale, axpby, copy and norms: the CUDA driver's kernel bodies, run on the host, give the bits of the scalar CPU driver.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/optimizers.h"
#include "tests/kernels/host_grid.h"
#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
using kernels::CheckArg;
using Mix = std::tuple<at::ScalarType, at::ScalarType>;

const std::vector<Grid> kGrids = {{1, 32, false}, {5, 256, true}, {90, 64, false}};

// Runs compute() with both drivers.
template <class Compute>
void expect_same_bits(const Compute& compute) {
  const Tensors expected = [&] {
    const UseIsa isa(kernels::cpu::Isa::portable);
    return compute();
  }();
  for (const Grid& grid : kGrids) {
    SCOPED_TRACE(std::to_string(grid.blocks) + " x " + std::to_string(grid.threads));
    const OnHostGrid on_grid(grid);
    EXPECT_TRUE(same_bits(compute(), expected));
    EXPECT_GT(on_grid.launches(), 0);
  }
}

Tensors with_flag(const Tensors& tensors, const at::Tensor& flag) {
  Tensors all = tensors;
  all.push_back(flag);
  return all;
}

class DeviceElementwise : public ::testing::TestWithParam<Mix> {
 protected:
  Tensors x_ = random_list(std::get<0>(GetParam()), /*offset=*/1);
  Tensors y_ = random_list(std::get<1>(GetParam()), /*offset=*/5);
};

TEST_P(DeviceElementwise, ScaleHasTheBitsOfTheScalarDriver) {
  for (const int64_t offset : {0, 1, 2, 6}) {
    expect_same_bits([&] {
      const Tensors out = outputs_for(x_, std::get<1>(GetParam()), offset);
      const at::Tensor flag = clear_flag();
      kernels::multi_tensor_scale(flag, x_, out, 0.37);
      return with_flag(out, flag);
    });
  }
}

TEST_P(DeviceElementwise, UnscaleHasTheBitsOfTheScalarDriver) {
  expect_same_bits([&] {
    const Tensors out = outputs_for(x_, std::get<1>(GetParam()), 3);
    const at::Tensor flag = clear_flag();
    kernels::multi_tensor_unscale(flag, x_, out, at::full({1}, 0.37, at::kFloat));
    return with_flag(out, flag);
  });
}

TEST_P(DeviceElementwise, AxpbyHasTheBitsOfTheScalarDriver) {
  for (const auto out_dtype : {at::kHalf, at::kFloat}) {
    expect_same_bits([&] {
      const Tensors out = outputs_for(x_, out_dtype, 3);
      const at::Tensor flag = clear_flag();
      kernels::multi_tensor_axpby(flag, x_, y_, out, 0.3, -1.7, CheckArg::both);
      return with_flag(out, flag);
    });
  }
}

TEST_P(DeviceElementwise, CopyHasTheBitsOfTheScalarDriver) {
  expect_same_bits([&] {
    const Tensors out = outputs_for(x_, std::get<1>(GetParam()), 4);
    kernels::multi_tensor_copy(x_, out);
    return out;
  });
}

// In place, an element that is visited twice shows.
TEST_P(DeviceElementwise, InPlaceCallsChangeEveryElementOnce) {
  expect_same_bits([&] {
    const Tensors work = copies_of(x_);
    kernels::multi_tensor_scale(clear_flag(), work, work, 0.37);
    kernels::multi_tensor_axpby(clear_flag(), work, y_, work, 2, -1, CheckArg::x);
    return work;
  });
}

TEST_P(DeviceElementwise, FlagsAreSetForCheckedArguments) {
  const auto dtype = std::get<0>(GetParam());
  const Tensors good = {at::ones({70000}, dtype)}, bad = copies_of(good), out = {at::empty({70000})};
  for (const int64_t place : {0, 8191, 8192, 65535, 69999}) {
    bad[0].fill_(1)[place] = place % 2 == 0 ? -INFINITY : NAN;
    const auto raised = [&](const Tensors& x, const Tensors& y, CheckArg check) {
      const at::Tensor flag = clear_flag();
      kernels::multi_tensor_axpby(flag, x, y, out, 0.5, 0.5, check);
      return flag.item<int>() != 0;
    };
    const OnHostGrid on_grid;
    const at::Tensor flag = clear_flag();
    kernels::multi_tensor_scale(flag, bad, out, 0.5);
    EXPECT_EQ(flag.item<int>(), 1);
    const at::Tensor of_bad = clear_flag(), of_good = clear_flag();
    kernels::multi_tensor_check_finite(of_bad, bad);
    kernels::multi_tensor_check_finite(of_good, good);
    EXPECT_EQ(of_bad.item<int>(), 1);
    EXPECT_EQ(of_good.item<int>(), 0);
    EXPECT_TRUE(raised(bad, good, CheckArg::both) && raised(good, bad, CheckArg::both));
    EXPECT_TRUE(raised(bad, good, CheckArg::x) && raised(good, bad, CheckArg::y));
    EXPECT_FALSE(raised(good, bad, CheckArg::x) || raised(bad, good, CheckArg::y) || raised(good, good, CheckArg::both));
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, DeviceElementwise,
                         ::testing::Combine(::testing::ValuesIn(dtypes()), ::testing::ValuesIn(dtypes())), param_name<Mix>);

// --- Norms

Tensors of(const std::tuple<at::Tensor, at::Tensor>& norms, const at::Tensor& flag) {
  return {std::get<0>(norms), std::get<1>(norms), flag};
}

class DeviceNorms : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void expect_same_norms(const Tensors& in, bool per_tensor = true) {
    const at::Tensor inv_scale = at::full({1}, 1.0 / 3, at::kFloat);
    expect_same_bits([&] {
      const at::Tensor flag = clear_flag();
      return of(kernels::multi_tensor_l2norm(flag, in, per_tensor), flag);
    });
    expect_same_bits([&] {
      const at::Tensor flag = clear_flag();
      return of(kernels::multi_tensor_unscale_l2norm(flag, in, inv_scale, per_tensor), flag);
    });
    expect_same_bits([&] {
      const at::Tensor flag = clear_flag();
      return of(kernels::multi_tensor_maxnorm(flag, in, per_tensor), flag);
    });
  }
};

TEST_P(DeviceNorms, HaveTheBitsOfTheScalarDriver) {
  expect_same_norms(random_list(GetParam()));
  expect_same_norms(random_list(GetParam()), /*per_tensor=*/false);
}

TEST_P(DeviceNorms, HaveTheBitsOfTheScalarDriverAtEveryAlignment) {
  const auto size = static_cast<int64_t>(c10::elementSize(GetParam()));
  for (int64_t offset = 0; offset * size < 64; ++offset) {
    expect_same_norms({random_values(65600, GetParam(), offset), random_values(700, GetParam(), 2 * offset)});
  }
}

TEST_P(DeviceNorms, HaveTheBitsOfTheScalarDriverForManyTensors) {
  for (const int64_t count : {1, 161, 2000}) {
    Tensors in;
    for (int64_t i = 0; i < count; ++i) in.push_back(random_values((i + 1) * 13 % 91, GetParam()));
    expect_same_norms(in);
  }
}

TEST_P(DeviceNorms, NonFiniteOnesSetTheFlag) {
  for (const double value : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    for (const int64_t place : {0, 65535, 65536, 70000}) {
      Tensors in = {at::ones({8}, GetParam()), at::ones({70001}, GetParam())};
      in[1][place] = value;
      expect_same_norms(in);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceNorms, ::testing::ValuesIn(dtypes()), param_name<at::ScalarType>);

// More chunks than lanes that accumulate their sums.
TEST(DeviceNormsOfManyChunks, HaveTheBitsOfTheScalarDriver) {
  const Tensors in = {random_values(1, at::kHalf), random_values(530 * 65536 + 77, at::kHalf)};
  const auto [expected, expected_each] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
  const OnHostGrid on_grid({5, 64, true});
  const auto [total, each] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
  EXPECT_TRUE(same_bits(total, expected));
  EXPECT_TRUE(same_bits(each, expected_each));
}

TEST(DeviceNormsOfMixedDtypes, NeedOneLaunch) {
  Tensors in;
  for (const auto dtype : dtypes()) {
    for (const at::Tensor& tensor : random_list(dtype, 1)) in.push_back(tensor);
  }
  const auto [expected, expected_each] = [&] {
    const UseIsa isa(kernels::cpu::Isa::portable);
    return kernels::multi_tensor_l2norm(clear_flag(), in, true);
  }();
  const OnHostGrid on_grid;
  const auto [total, each] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
  EXPECT_EQ(on_grid.launches(), 1);
  EXPECT_TRUE(same_bits(total, expected));
  EXPECT_TRUE(same_bits(each, expected_each));
}

TEST(DeviceLossScale, IsUpdatedLikeOnTheCpu) {
  kernels::ScaleUpdate rule;
  rule.growth_interval = 2;
  rule.hysteresis = 2;
  expect_same_bits([&] {
    const kernels::LossScaleTensors tensors = {at::full({1}, 8.0f), clear_flag(), at::full({1}, 2, at::kInt)};
    for (const int overflow : {0, 0, 1, 1, 1, 0, 0, 0}) {
      kernels::update_scale_hysteresis(tensors, at::full({1}, overflow, at::kInt), rule);
    }
    return Tensors{tensors.scale, tensors.growth_tracker, tensors.hysteresis_tracker};
  });
}

}  // namespace
}  // namespace kernels_test
