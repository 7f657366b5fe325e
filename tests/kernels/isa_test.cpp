// The CPU driver's instruction sets against one another: same bits for every operation, dtype mix, boundary size, alignment and
// number of threads.
#include <gtest/gtest.h>

#include "kernels/cpu/kernels.h"
#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;
using kernels::cpu::Isa;
using Mix = std::tuple<at::ScalarType, at::ScalarType>;

class IsaMix : public ::testing::TestWithParam<Mix> {
 protected:
  at::ScalarType in_dtype() const { return std::get<0>(GetParam()); }
  at::ScalarType out_dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(IsaMix, ScaleAndAxpbyHaveTheSameBits) {
  const Tensors x = random_list(in_dtype());
  const Tensors y = random_list(out_dtype());
  expect_same_everywhere([&] {
    Tensors out = outputs_for(x, out_dtype());
    kernels::multi_tensor_scale(clear_flag(), x, out, 0.37);
    kernels::multi_tensor_axpby(clear_flag(), x, y, out, 0.3, -1.7, kernels::CheckArg::both);
    return out;
  });
}

TEST_P(IsaMix, ScaleHasTheSameBitsAtEveryAlignment) {
  const auto step = static_cast<int64_t>(c10::elementSize(in_dtype()));
  const at::Tensor values = random_values(1100, in_dtype());
  const Tensors expected = {expected_scale(values, 0.37, out_dtype())};
  for (const Isa isa : available_isas()) {
    const UseIsa use(isa);
    for (int64_t offset = 0; offset * step < 64; ++offset) {
      const Tensors in = {random_values(1100, in_dtype(), offset).copy_(values)};
      const Tensors out = outputs_for(in, out_dtype(), 63 - offset);
      kernels::multi_tensor_scale(clear_flag(), in, out, 0.37);
      ASSERT_TRUE(same_bits(out, expected)) << kernels::cpu::name_of(isa) << ' ' << offset;
    }
  }
}

TEST_P(IsaMix, NothingOutsideTheOutputsIsWritten) {
  for (const Isa isa : available_isas()) {
    const UseIsa use(isa);
    for (int64_t size = 1; size < 70; ++size) {
      const at::Tensor memory = at::full({size + 64}, 7, out_dtype());
      kernels::multi_tensor_scale(clear_flag(), Tensors{random_values(size, in_dtype())}, Tensors{memory.narrow(0, 32, size)},
                                  2);
      ASSERT_TRUE(memory.narrow(0, 0, 32).eq(7).all().item<bool>()) << kernels::cpu::name_of(isa) << ' ' << size;
      ASSERT_TRUE(memory.narrow(0, 32 + size, 32).eq(7).all().item<bool>()) << kernels::cpu::name_of(isa) << ' ' << size;
    }
  }
}

// SCALE-05: a value that is not finite is seen in every lane of a vector and in every tail.
TEST_P(IsaMix, NonFiniteValuesAreDetectedAtEveryPosition) {
  for (const Isa isa : available_isas()) {
    const UseIsa use(isa);
    for (const int64_t size : {1, 15, 16, 17, 37, 513}) {
      const Tensors in = {at::ones({size}, in_dtype())};
      const Tensors out = outputs_for(in, out_dtype());
      for (int64_t i = 0; i < size; ++i) {
        in[0][i] = i % 2 == 0 ? INFINITY : NAN;
        const at::Tensor flag = clear_flag();
        kernels::multi_tensor_scale(flag, in, out, 0.5);
        ASSERT_EQ(flag.item<int>(), 1) << kernels::cpu::name_of(isa) << ' ' << i << " of " << size;
        const at::Tensor checked = clear_flag();
        kernels::multi_tensor_check_finite(checked, in);
        ASSERT_EQ(checked.item<int>(), 1) << kernels::cpu::name_of(isa) << ' ' << i << " of " << size;
        in[0][i] = 1;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, IsaMix, ::testing::Combine(::testing::ValuesIn(dtypes()), ::testing::ValuesIn(dtypes())),
                         param_name<Mix>);

TEST(Isa, PortableIsAlwaysAvailable) {
  EXPECT_TRUE(kernels::cpu::is_available(Isa::portable));
  EXPECT_TRUE(kernels::cpu::is_available(kernels::cpu::current_isa()));
}

TEST(Isa, TheWidestAvailableIsInUse) { EXPECT_EQ(kernels::cpu::current_isa(), available_isas().back()); }

// Compares NaN payloads, too: conversion instructions and portable code agree on them.
class Conversions : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor every_value() const { return at::arange(65536, at::kInt).to(at::kShort).view(GetParam()); }

  static void expect_same_copies(const at::Tensor& from, at::ScalarType to_dtype) {
    expect_same_everywhere(
        [&] {
          Tensors to = outputs_for({from}, to_dtype);
          kernels::multi_tensor_copy(Tensors{from}, to);
          return to;
        },
        /*nan_payloads=*/true);
  }
};

TEST_P(Conversions, OfEveryStoredValueHaveTheSameBits) { expect_same_copies(every_value(), at::kFloat); }

TEST_P(Conversions, OfFloatsAtAndNextToEveryTieHaveTheSameBits) {
  const int half_step = GetParam() == at::kHalf ? 0x1000 : 0x8000;
  const at::Tensor bits = every_value().to(at::kFloat).view(at::kInt);
  for (const int step : {0, half_step - 1, half_step, half_step + 1})
    expect_same_copies(bits.add(step).view(at::kFloat), GetParam());
}

TEST_P(Conversions, OfRandomBitsHaveTheSameBits) {
  const at::Tensor bits = at::randint(INT32_MIN, INT32_MAX, {1 << 20}, at::kLong).to(at::kInt);
  expect_same_copies(bits.view(at::kFloat), GetParam());
}

// Copies past the caches, which only very large updates make, to every alignment. The portable driver makes copies apart.
TEST_P(Conversions, WithStreamingStoresWriteTheSameBitsAndNothingElse) {
  using Rule = apex::kernels::rules::PlainSgd;
  const Rule rule{1, 0.5, 0, false};
  const at::Tensor grads = random_values(600, at::kFloat), params = random_values(600, at::kFloat);
  const at::Tensor updated = params - grads * 0.5;
  const at::Tensor expected = updated.to(GetParam());
  for (const Isa isa : available_isas()) {
    const UseIsa use(isa);
    const auto kernel = kernels::cpu::kernels_of<Rule>().run[0][0][static_cast<int>(kernels::cpu::storage_of(GetParam()))];
    ASSERT_EQ(kernel == nullptr, isa == Isa::portable);
    if (kernel == nullptr) continue;
    for (const int64_t size : {0, 1, 7, 15, 16, 17, 31, 33, 512, 600}) {
      for (int64_t offset = 0; offset < 33; ++offset) {
        const at::Tensor memory = at::full({size + 80}, 7, GetParam());
        const at::Tensor to = memory.narrow(0, offset, size), values = params.clone();
        kernel(rule, {{grads.data_ptr(), values.data_ptr(), to.data_ptr()}, {}, size, {}, false, /*past_caches=*/true});
        kernels::cpu::current_kernels().conversions.fence();
        SCOPED_TRACE(std::string(kernels::cpu::name_of(isa)) + ' ' + std::to_string(size) + ' ' + std::to_string(offset));
        ASSERT_TRUE(same_bits(to, expected.narrow(0, 0, size)));
        ASSERT_TRUE(same_bits(values.narrow(0, 0, size), updated.narrow(0, 0, size)));
        ASSERT_TRUE(memory.narrow(0, 0, offset).eq(7).all().item<bool>());
        ASSERT_TRUE(memory.narrow(0, offset + size, 80 - offset).eq(7).all().item<bool>());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Conversions, ::testing::Values(at::kHalf, at::kBFloat16), param_name<at::ScalarType>);

}  // namespace
}  // namespace kernels_test
