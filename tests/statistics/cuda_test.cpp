// CUDA tensors give the bits of the CPU. Needs a GPU.
#include "tests/needs_gpus.h"
#include "tests/statistics/support.h"

namespace apex::test {
namespace {

TEST(StatisticsOnCuda, GiveTheBitsOfTheCpu) {
  APEX_CPP_NEEDS_GPUS(1);
  for (const auto dtype : statistics_dtypes()) {
    std::vector<torch::Tensor> on_cpu, on_cuda;
    for (const int64_t size : {0, 1, 33, 131072, 1000003}) {
      on_cpu.push_back(wild_values(size, dtype, 20 + size));
      on_cuda.push_back(on_cpu.back().cuda());
    }
    SCOPED_TRACE(dtype);
    expect_same_bits(amp::statistics(on_cuda), amp::statistics(on_cpu));
  }
}

// More elements than a 32-bit int can count.
TEST(StatisticsOnCuda, CountMoreThan2To31Elements) {
  APEX_CPP_NEEDS_GPUS(1);
  const int64_t numel = (int64_t{1} << 31) + 5;
  const auto record =
      amp::statistics(std::vector<torch::Tensor>{torch::full({numel}, 0.5, torch::dtype(torch::kHalf).device(torch::kCUDA))})
          .at(0);
  EXPECT_EQ(record.exponents, (std::map<int, int64_t>{{-1, numel}}));
  EXPECT_EQ(record.mean, 0.5);
}

}  // namespace
}  // namespace apex::test
