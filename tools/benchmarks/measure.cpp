#include "measure.h"

#include <algorithm>
#include <cstdint>

namespace bench {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

namespace {

bool takes_part(const Variant& variant, int round, int rounds) {
  const auto turns_before = [&](int64_t some) { return some * std::min(variant.most_rounds, rounds) / rounds; };
  return turns_before(round + 1) > turns_before(round);
}

}  // namespace

Rounds interleave(const std::vector<Variant>& variants, int rounds, const std::function<void(int)>& after_round) {
  Rounds results(variants.size());
  for (const auto& variant : variants) variant.round();
  for (int round = 0; round < rounds; ++round) {
    for (size_t turn = 0; turn < variants.size(); ++turn) {
      const size_t i = (turn + static_cast<size_t>(round)) % variants.size();
      if (takes_part(variants[i], round, rounds)) results[i].push_back(variants[i].round());
    }
    after_round(round + 1);
  }
  return results;
}

double nanoseconds_per_call(const std::function<void()>& f, int calls) {
  const Stopwatch stopwatch;
  for (int i = 0; i < calls; ++i) f();
  return stopwatch.nanoseconds() / calls;
}

int calls_in(const std::function<void()>& f, double seconds) {
  constexpr int kMostCalls = 1 << 24;
  int calls = 1;
  while (calls < kMostCalls) {
    const double elapsed = nanoseconds_per_call(f, calls) * calls * 1e-9;
    if (elapsed >= seconds / 4) return std::max(1, static_cast<int>(calls * seconds / elapsed));
    calls *= 2;
  }
  return calls;
}

}  // namespace bench
