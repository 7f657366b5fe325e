// The order of sums depends on the shape alone: the same bits with any number of threads, any instruction set, and the lanes of
// GPUs, which tests/cuda_host launches.
#include "kernels/cpu/isa.h"
#include "kernels/statistics/statistics.h"
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

// The threads of a GPU's block, one after the other.
struct TileBlock {
  template <class Work>
  void each_thread(const Work& work) const {
    for (int thread = 0; thread < kernels::statistics::kTileLanes; ++thread) work(thread);
  }
  void barrier() const {}
};

// All numbers, float64 ones by their bits.
std::vector<int64_t> numbers_of(const kernels::TensorStatistics& found) {
  std::vector<int64_t> all{found.zeros, found.inf, found.nan};
  for (const double value : {found.sum, found.sum_of_squares, found.abs_max}) all.push_back(bits_of(value));
  for (const kernels::ExponentCounts& row : found.exponents) {
    all.push_back(row.exponent);
    all.insert(all.end(), row.parts.begin(), row.parts.end());
  }
  return all;
}

template <class Stored>
void expect_same_bits_from_blocks(torch::Dtype dtype) {
  using namespace kernels::statistics;
  const std::vector<torch::Tensor> tensors{wild_values(kTile + 700, dtype, 31), tame_values(5, dtype, 32),
                                           wild_values(0, dtype, 33), tame_values(40001, dtype, 34)};
  const JobMemory memory(tensors);
  std::vector<uint32_t> counts(static_cast<size_t>(kBins<ComputesIn<Stored>>) + 1, 7u);
  std::vector<Sums> lanes(kTileLanes);
  for (int64_t tile = 0; tile < memory.job().tiles; ++tile) {
    read_tile<Stored>(TileBlock(), memory.job(), tile, counts.data(), lanes.data());
  }
  for (int64_t tensor = 0; tensor < memory.job().tensors; ++tensor) AddTiles{memory.job()}(tensor);
  const auto found = memory.results(), expected = kernels::tensor_statistics(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(numbers_of(found.at(i)), numbers_of(expected.at(i))) << dtype << ' ' << i;
  }
  EXPECT_EQ(counts.back(), 7u) << "behind the block's memory";
}

TEST(StatisticsBits, AreTheSameInTheLanesOfAGpu) {
  expect_same_bits_from_blocks<kernels::rules::Half>(torch::kHalf);
  expect_same_bits_from_blocks<kernels::rules::BFloat16>(torch::kBFloat16);
  expect_same_bits_from_blocks<float>(torch::kFloat);
  expect_same_bits_from_blocks<double>(torch::kDouble);
}

}  // namespace
}  // namespace apex::test
