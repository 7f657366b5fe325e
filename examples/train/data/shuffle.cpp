#include "data/shuffle.h"

#include <numeric>
#include <random>
#include <utility>

namespace train {

std::vector<int64_t> shuffled_indices(int64_t count, uint64_t seed, uint64_t stream) {
  const auto low = [](uint64_t word) { return static_cast<uint32_t>(word); };
  std::seed_seq mixed{low(seed), low(seed >> 32), low(stream), low(stream >> 32)};
  std::mt19937_64 generator(mixed);
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  // Fisher-Yates by hand: std::shuffle and the standard distributions differ between standard libraries.
  for (size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[generator() % left]);
  }
  return order;
}

}  // namespace train
