// The order of sums depends on the shape alone: the same bits with any number of threads and any instruction set.
// tests/cuda_host compares the lanes of GPUs.
#include "kernels/cpu/isa.h"
#include "tests/statistics/support.h"

namespace apex::test {
namespace {

using kernels::cpu::Isa;

std::vector<torch::Tensor> several(torch::Dtype dtype) {
  std::vector<torch::Tensor> tensors;
  for (const int64_t size : {1000003, 5, 0, 131072, 40000, 131073}) {
    tensors.push_back(wild_values(size, dtype, 11 + size));
    tensors.push_back(tame_values(size, dtype, 12 + size));
  }
  // In each block of 2048: Inf, a power of two, or an outlier among ordinary values; or zeros only.
  auto spoiled = tame_values(4 * 2048, dtype, 13);
  spoiled[100] = std::numeric_limits<double>::infinity();
  spoiled.slice(0, 2048, 2 * 2048).fill_(0.25);
  spoiled[5000] = 0x1p15;
  spoiled.slice(0, 3 * 2048).zero_();
  tensors.push_back(spoiled);
  return tensors;
}

TEST(StatisticsBits, AreTheSameAtAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const auto dtype : statistics_dtypes()) {
    const auto tensors = several(dtype);
    at::set_num_threads(1);
    const auto one = amp::statistics(tensors);
    for (const int threads : {2, 3, 5}) {
      SCOPED_TRACE(::testing::Message() << dtype << " on " << threads << " threads");
      at::set_num_threads(threads);
      expect_same_bits(amp::statistics(tensors), one);
    }
  }
  at::set_num_threads(before);
}

TEST(StatisticsBits, AreTheSameOnAnyInstructionSet) {
  const Isa before = kernels::cpu::current_isa();
  for (const auto dtype : statistics_dtypes()) {
    const auto tensors = several(dtype);
    kernels::cpu::set_current_isa(Isa::portable);
    const auto portable = amp::statistics(tensors);
    for (const Isa isa : kernels::cpu::kEveryIsa) {
      if (isa == Isa::portable || !kernels::cpu::is_available(isa)) continue;
      SCOPED_TRACE(::testing::Message() << dtype << " on " << kernels::cpu::name_of(isa));
      kernels::cpu::set_current_isa(isa);
      expect_same_bits(amp::statistics(tensors), portable);
    }
  }
  kernels::cpu::set_current_isa(before);
}

}  // namespace
}  // namespace apex::test
