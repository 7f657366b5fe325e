// CUDA tensors give the bits of the CPU. Needs a GPU.
#include "tests/needs_gpus.h"
#include "tests/normalization/support.h"

namespace normalization_test {
namespace {

class NormOnCuda : public ::testing::TestWithParam<Mix> {
 protected:
  void SetUp() override { APEX_CPP_NEEDS_GPUS(1); }
};

Case on_cuda(const Case& c) {
  const auto moved = [](const Tensor& tensor) { return tensor.defined() ? tensor.cuda() : tensor; };
  Case result = c;
  result.input = moved(c.input), result.grad_output = moved(c.grad_output);
  result.weight = moved(c.weight), result.bias = moved(c.bias);
  return result;
}

Result on_cpu(const Result& result) {
  const auto moved = [](const Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; };
  return {moved(result.output), moved(result.grad_input), moved(result.grad_weight), moved(result.grad_bias)};
}

TEST_P(NormOnCuda, GivesTheBitsOfTheCpu) {
  for (const int64_t size : sizes()) {
    for (const int64_t rows : {1, 9, 300}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << size);
      Case c = random_case(GetParam(), rows, size);
      for (const bool memory_efficient : {false, true}) {
        c.memory_efficient = memory_efficient;
        expect_same_bits(on_cpu(run(on_cuda(c))), run(c));
      }
    }
  }
}

// The shapes of Apex's tests.
TEST_P(NormOnCuda, GivesTheBitsOfTheCpuOnManyRows) {
  const Case c = random_case(GetParam(), 65536, 512);
  expect_same_bits(on_cpu(run(on_cuda(c))), run(c));
}

INSTANTIATE_TEST_SUITE_P(All, NormOnCuda, ::testing::ValuesIn(all_mixes()), param_name);

}  // namespace
}  // namespace normalization_test
