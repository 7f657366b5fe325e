// Float32 tensors as bfloat16 and remainders, by ATen's operators, against the kernels' formula for one value.
#include <apex_cpp/optimizers/detail/remainders.h>

#include "kernels/rules/remainder.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

namespace rules = apex::kernels::rules;
namespace split = apex::optimizers::detail;

at::Tensor many_values() {
  std::vector<int32_t> bits;
  for (uint32_t upper = 0; upper < 0x10000; upper += 7) {
    for (const uint32_t lower : {0u, 1u, 0x7fu, 0x80u, 0x180u, 0x7f80u, 0x7fffu, 0x8000u, 0x8001u, 0xff80u, 0xffffu}) {
      bits.push_back(static_cast<int32_t>(upper << 16 | lower));
    }
  }
  for (const uint32_t special : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffffffffu, 0x7f7fffffu, 0x80000000u}) {
    bits.push_back(static_cast<int32_t>(special));
  }
  return at::tensor(bits, at::kInt).view(at::kFloat);
}

template <class Remainder>
void expect_split_of_kernels(const at::Tensor& values, const at::Tensor& param, const at::Tensor& remainder) {
  const at::Tensor back = split::joined(param, remainder);
  for (int64_t i = 0; i < values.numel(); ++i) {
    const auto expected = rules::split<Remainder>(values.const_data_ptr<float>()[i]);
    const auto bits = static_cast<const uint16_t*>(param.const_data_ptr())[i];
    ASSERT_EQ(bits, expected.rounded.bits) << values[i].item<float>();
    ASSERT_EQ(remainder.const_data_ptr<Remainder>()[i], expected.remainder) << values[i].item<float>();
    ASSERT_EQ(rules::to_bits(back.const_data_ptr<float>()[i]),
              rules::to_bits(rules::join(expected.rounded, expected.remainder)));
  }
}

TEST(SplitTensor, IsTheSplitOfTheKernels) {
  const at::Tensor values = many_values(), param = at::empty_like(values, at::kBFloat16);
  for (const auto dtype : {at::kShort, at::kChar}) {
    const at::Tensor remainder = at::empty_like(values, dtype);
    split::split_into(values, param, remainder);
    dtype == at::kShort ? expect_split_of_kernels<int16_t>(values, param, remainder)
                        : expect_split_of_kernels<int8_t>(values, param, remainder);
  }
}

// A program may write the bfloat16 alone.
TEST(SplitTensor, JoinsAnyPairAsTheKernelsDo) {
  const at::Tensor uppers = at::arange(-0x8000, 0x8000, at::kInt).to(at::kShort);
  for (const int remainder : {-0x8000, -1, 0, 1, 0x7fff}) {
    const at::Tensor rest = at::full_like(uppers, remainder, at::kShort);
    const at::Tensor joined = split::joined(uppers.view(at::kBFloat16), rest);
    for (int64_t i = 0; i < uppers.numel(); ++i) {
      const rules::BFloat16 upper{static_cast<uint16_t>(uppers.const_data_ptr<int16_t>()[i])};
      ASSERT_EQ(rules::to_bits(joined.const_data_ptr<float>()[i]),
                rules::to_bits(rules::join(upper, static_cast<int16_t>(remainder))));
    }
  }
}

}  // namespace
}  // namespace test
