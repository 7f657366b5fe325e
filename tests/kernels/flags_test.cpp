// When found_inf is set, and when not (K-SCALE, K-AXPBY, K-L2, SCALE-05..07, SCALE-12).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
using kernels::CheckArg;

const std::vector<int64_t> kFlagSizes = {1, 33, 600, 65537};

Tensors ones(at::ScalarType dtype) {
  Tensors list;
  for (const int64_t size : kFlagSizes) list.push_back(at::ones({size}, dtype));
  return list;
}

// A list with one non-finite value, and the value's position.
struct Injected {
  Tensors list;
  size_t tensor;
  int64_t element;
};

class NonFinite : public ::testing::TestWithParam<std::tuple<at::ScalarType, double>> {
 protected:
  at::ScalarType dtype() const { return std::get<0>(GetParam()); }
  double value() const { return std::get<1>(GetParam()); }

  // Visits each tensor with the value at its first, middle and last element.
  template <class Visit>
  void at_each_place(const Visit& visit) const {
    for (size_t tensor = 0; tensor < kFlagSizes.size(); ++tensor) {
      for (const int64_t element : {int64_t{0}, kFlagSizes[tensor] / 2, kFlagSizes[tensor] - 1}) {
        SCOPED_TRACE("element " + std::to_string(element) + " of " + std::to_string(kFlagSizes[tensor]));
        Injected injected{ones(dtype()), tensor, element};
        injected.list[tensor][element] = value();
        visit(injected);
      }
    }
  }
};

int axpby_flag(const Tensors& x, const Tensors& y, CheckArg check) {
  const at::Tensor flag = clear_flag();
  kernels::multi_tensor_axpby(flag, x, y, outputs_for(x, at::kFloat), 1.0, 2.0, check);
  return flag.item<int>();
}

TEST_P(NonFinite, InputOfScaleIsReportedAndEverythingIsWritten) {
  at_each_place([](const Injected& in) {
    const Tensors out = outputs_for(in.list, at::kFloat);
    const at::Tensor flag = clear_flag();
    kernels::multi_tensor_scale(flag, in.list, out, 0.5);
    EXPECT_EQ(flag.item<int>(), 1);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(same_bits(out[i], in.list[i].to(at::kFloat).mul(0.5))) << i;
  });
}

TEST_P(NonFinite, InputOfUnscaleIsReportedAndEverythingIsWritten) {
  at_each_place([](const Injected& in) {
    const Tensors out = outputs_for(in.list, at::kFloat);
    const at::Tensor flag = clear_flag();
    kernels::multi_tensor_unscale(flag, in.list, out, at::full({}, 0.5f));
    EXPECT_EQ(flag.item<int>(), 1);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(same_bits(out[i], in.list[i].to(at::kFloat).mul(0.5))) << i;
  });
}

TEST_P(NonFinite, InputOfCheckFiniteIsReportedAndNothingIsWritten) {
  at_each_place([](const Injected& in) {
    const Tensors before = copies_of(in.list);
    std::vector<uint32_t> versions;
    for (const at::Tensor& tensor : in.list) versions.push_back(tensor._version());
    const at::Tensor flag = clear_flag();
    kernels::multi_tensor_check_finite(flag, in.list);
    EXPECT_EQ(flag.item<int>(), 1);
    EXPECT_TRUE(same_bytes(in.list, before));
    for (size_t i = 0; i < versions.size(); ++i) EXPECT_EQ(in.list[i]._version(), versions[i]) << i;
  });
}

TEST_P(NonFinite, InputsOfAxpbyAreReportedAsRequested) {
  const Tensors good = ones(dtype());
  at_each_place([&](const Injected& bad) {
    EXPECT_EQ(axpby_flag(bad.list, good, CheckArg::x), 1);
    EXPECT_EQ(axpby_flag(bad.list, good, CheckArg::y), 0);
    EXPECT_EQ(axpby_flag(bad.list, good, CheckArg::both), 1);
    EXPECT_EQ(axpby_flag(good, bad.list, CheckArg::x), 0);
    EXPECT_EQ(axpby_flag(good, bad.list, CheckArg::y), 1);
    EXPECT_EQ(axpby_flag(good, bad.list, CheckArg::both), 1);
  });
}

TEST_P(NonFinite, InputOfAxpbyDoesNotStopWriting) {
  const Tensors y = ones(at::kFloat);
  at_each_place([&](const Injected& x) {
    const Tensors out = outputs_for(x.list, at::kFloat);
    kernels::multi_tensor_axpby(clear_flag(), x.list, y, out, 0.5, 2.0, CheckArg::x);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_TRUE(same_bits(out[i], expected_axpby(x.list[i], y[i], 0.5, 2.0, at::kFloat))) << i;
    }
  });
}

TEST_P(NonFinite, InputOfL2NormIsReportedAndAffectsOnlyItsNorm) {
  at_each_place([&](const Injected& in) {
    const at::Tensor flag = clear_flag();
    const auto [norm, norms] = kernels::multi_tensor_l2norm(flag, in.list, true);
    EXPECT_EQ(flag.item<int>(), 1);
    EXPECT_EQ(std::isnan(norm.item<float>()), std::isnan(value()));
    EXPECT_EQ(std::isinf(norm.item<float>()), std::isinf(value()));
    for (size_t i = 0; i < kFlagSizes.size(); ++i) {
      EXPECT_EQ(std::isfinite(norms[static_cast<int64_t>(i)].item<float>()), i != in.tensor) << i;
    }
  });
}

std::string value_name(const ::testing::TestParamInfo<std::tuple<at::ScalarType, double>>& place) {
  const auto [dtype, value] = place.param;
  return name_of(dtype) + (std::isnan(value) ? "NaN" : value > 0 ? "Inf" : "MinusInf");
}

INSTANTIATE_TEST_SUITE_P(Values, NonFinite,
                         ::testing::Combine(::testing::ValuesIn(dtypes()), ::testing::Values(INFINITY, -INFINITY, NAN)),
                         value_name);

TEST(CheckFinite, DoesNotSetTheFlagForFiniteValues) {
  for (const at::ScalarType dtype : dtypes()) {
    const at::Tensor limits = at::tensor({dtype == at::kHalf ? 65504.0 : 3e38, -0.0, 1e-40, 6e-8}).to(dtype);
    for (const int raised : {0, 1}) {
      const at::Tensor flag = clear_flag().fill_(raised);
      kernels::multi_tensor_check_finite(flag, Tensors{limits, at::empty({0}, dtype)});
      EXPECT_EQ(flag.item<int>(), raised) << dtype;
    }
  }
}

// K-SCALE: only inputs are checked.
TEST(Overflow, CreatedByStoringAProductIsNotReported) {
  const Tensors in = {at::full({700}, 1000.0f)};
  const Tensors out = outputs_for(in, at::kHalf);
  const at::Tensor flag = clear_flag();
  kernels::multi_tensor_scale(flag, in, out, 1000.0);
  EXPECT_TRUE(out[0].eq(INFINITY).all().item<bool>());
  EXPECT_EQ(flag.item<int>(), 0);
}

TEST(Overflow, OfTheProductItselfIsNotReported) {
  const Tensors in = {at::full({700}, 1e30f)};
  const Tensors out = outputs_for(in, at::kFloat);
  const at::Tensor flag = clear_flag();
  kernels::multi_tensor_scale(flag, in, out, 1e30);
  EXPECT_TRUE(out[0].eq(INFINITY).all().item<bool>());
  EXPECT_EQ(flag.item<int>(), 0);
}

// SCALE-12: single elements are checked, not their sum.
TEST(Overflow, OfTheSumOfLargeFiniteValuesIsNotReported) {
  const Tensors in = {at::full({700}, 3e38f), at::full({700}, 65504.0, at::kHalf)};
  const at::Tensor flag = clear_flag();
  kernels::multi_tensor_scale(flag, in, outputs_for(in, at::kFloat), 1.0);
  EXPECT_EQ(flag.item<int>(), 0);
}

// K-L2: finite values whose squares overflow.
TEST(Overflow, OfASumOfSquaresIsReported) {
  const Tensors squares = {at::full({1}, 1e20f)};
  const Tensors sums = {at::full({2}, 1.5e19f)};
  const Tensors beyond_float = {at::full({1}, 1e200, at::kDouble)};
  for (const Tensors& in : {squares, sums, beyond_float}) {
    const at::Tensor flag = clear_flag();
    const at::Tensor norm = std::get<0>(kernels::multi_tensor_l2norm(flag, in, false));
    EXPECT_EQ(norm.item<float>(), INFINITY);
    EXPECT_EQ(flag.item<int>(), 1);
  }
}

TEST(Overflow, OfSumsOverSeveralChunksDoesNotHappen) {
  const Tensors in = {at::full({3 * 65536}, 6.5e16f), at::full({65536}, 6.5e16f)};
  const at::Tensor flag = clear_flag();
  const at::Tensor norm = std::get<0>(kernels::multi_tensor_l2norm(flag, in, false));
  // Within 2.5 roundings of 2^-24 (rules/rule.h), and one of the value itself.
  EXPECT_NEAR(norm.item<float>(), 6.5e16 * 512, 3.5 * 0x1p-24 * 6.5e16 * 512);
  EXPECT_EQ(flag.item<int>(), 0);
}

// SCALE-07: flags accumulate over calls.
TEST(Flag, IsNeverReset) {
  const at::Tensor flag = at::ones({1}, at::kInt);
  const Tensors in = ones(at::kFloat);
  const Tensors out = outputs_for(in, at::kHalf);
  kernels::multi_tensor_scale(flag, in, out, 3.0);
  EXPECT_EQ(flag.item<int>(), 1);
  EXPECT_TRUE(out[3].eq(3).all().item<bool>()) << "a raised flag must not stop the call";
  kernels::multi_tensor_axpby(flag, in, in, outputs_for(in, at::kFloat), 1.0, 1.0, CheckArg::both);
  kernels::multi_tensor_l2norm(flag, in, true);
  EXPECT_EQ(flag.item<int>(), 1);
}

TEST(Flag, MayHaveNoDimensions) {
  const at::Tensor flag = at::zeros({}, at::kInt);
  const Tensors in = {at::full({5}, NAN)};
  kernels::multi_tensor_scale(flag, in, in, 1.0);
  EXPECT_EQ(flag.item<int>(), 1);
}

TEST(Flag, CoversEveryGroupOfDtypes) {
  for (const size_t bad : {0u, 1u, 2u}) {
    Tensors in = {at::ones({40}, at::kHalf), at::ones({40}), at::ones({40}, at::kBFloat16)};
    in[bad][39] = NAN;
    const at::Tensor flag = clear_flag();
    kernels::multi_tensor_scale(flag, in, outputs_for(in, at::kFloat), 1.0);
    EXPECT_EQ(flag.item<int>(), 1) << bad;
  }
}

}  // namespace
}  // namespace kernels_test
