#include <apex_cpp/amp/comparison/measurement.h>

#include <apex_cpp/files/csv.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace apex::amp::detail {
namespace {

constexpr double kMissProbability = 0.01;  // probability that an interval misses its median
constexpr size_t kMaxForStudent = 7;       // with so few values even minimum and maximum make no 99 % interval
// Quantiles of Student's t distribution for two-sided 99 % intervals, for 1, 2, ... degrees of freedom.
constexpr std::array<double, 6> kStudent = {63.657, 9.925, 5.841, 4.604, 4.032, 3.707};

double middle_of(const std::vector<double>& sorted) {
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

Interval student_interval(const std::vector<double>& sorted) {
  std::vector<double> logs(sorted.size());
  std::transform(sorted.begin(), sorted.end(), logs.begin(), [](double value) { return std::log(value); });
  const auto count = static_cast<double>(logs.size());
  const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / count;
  double squares = 0;
  for (const double log : logs) squares += (log - mean) * (log - mean);
  const double reach = kStudent[logs.size() - 2] * std::sqrt(squares / (count - 1) / count);
  const double median = middle_of(sorted);
  return {median, std::min(median, std::exp(mean - reach)), std::max(median, std::exp(mean + reach))};
}

// The number of values outside the interval at each end, by the binomial distribution with probability 1/2.
size_t values_outside(size_t count) {
  double probability = std::pow(0.5, static_cast<double>(count)), below = probability;
  size_t outside = 0;
  while (true) {
    probability *= static_cast<double>(count - outside) / static_cast<double>(outside + 1);
    below += probability;
    if (2 * below > kMissProbability) return outside;
    ++outside;
  }
}

const char* order_name(Order order) {
  constexpr std::array<const char*, 4> names = {"faster", "slower", "equal", "unknown"};
  return names[static_cast<size_t>(order)];
}

}  // namespace

Interval median_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  if (values.size() < 2) return {values.empty() ? kNaN : values[0], 0, kInf};
  if (values.size() <= kMaxForStudent) return student_interval(values);
  const size_t outside = values_outside(values.size());
  return {middle_of(values), values[outside], values[values.size() - 1 - outside]};
}

Order order_of(const Interval& ratio) {
  if (ratio.low >= 1 / (1 + kEqualTimes) && ratio.high <= 1 + kEqualTimes) return Order::equal;
  if (ratio.high < 1) return Order::faster;
  return ratio.low > 1 ? Order::slower : Order::unknown;
}

Interval ratio_interval(const Rounds& rounds, size_t a, size_t b) {
  std::vector<double> ratios;
  for (const auto& times : rounds) ratios.push_back(times[a] / times[b]);
  return median_interval(std::move(ratios));
}

bool has_unknown_order(const Rounds& rounds) {
  const size_t levels = rounds.empty() ? 0 : rounds.front().size();
  for (size_t a = 0; a < levels; ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (order_of(ratio_interval(rounds, a, b)) == Order::unknown) return true;
    }
  }
  return false;
}

bool needs_rounds(const Rounds& rounds, int64_t max_rounds) {
  const auto made = static_cast<int64_t>(rounds.size());
  if (made >= max_rounds) return false;
  const bool is_evaluated = made >= kFirstRounds && (made - kFirstRounds) % kMoreRounds == 0;
  return !is_evaluated || has_unknown_order(rounds);
}

std::string times_rows(const TimedGroup& group) {
  std::string rows;
  for (size_t i = 0; i < group.levels.size(); ++i) {
    std::vector<double> times;
    for (const auto& round : group.rounds) times.push_back(round[i]);
    const auto interval = median_interval(std::move(times));
    rows += csv_row(group.config, group.processes, group.levels[i], group.rounds.size(), interval.median, interval.low,
                    interval.high);
  }
  return rows;
}

std::string ratios_rows(const TimedGroup& group) {
  std::string rows;
  for (size_t a = 0; a < group.levels.size(); ++a) {
    for (size_t b = 0; b < group.levels.size(); ++b) {
      if (a == b) continue;
      const auto ratio = ratio_interval(group.rounds, a, b);
      rows += csv_row(group.config, group.processes, group.levels[a], group.levels[b], group.rounds.size(), ratio.median,
                      ratio.low, ratio.high, order_name(order_of(ratio)));
    }
  }
  return rows;
}

void TensorMemory::reportMemoryUsage(void* block, int64_t bytes, size_t /*total_allocated*/, size_t /*total_reserved*/,
                                     c10::Device device) {
  if (device_type_ && device.type() != *device_type_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > 0) {
    live_ += bytes - std::exchange(blocks_[block], bytes);  // an earlier block there was freed on a thread that is not counted
    peak_ = std::max(peak_, live_);
  } else if (const auto found = blocks_.find(block); found != blocks_.end()) {
    live_ -= found->second;
    blocks_.erase(found);
  }
}

int64_t TensorMemory::live() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return live_;
}

int64_t TensorMemory::take_peak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(peak_, live_);
}

}  // namespace apex::amp::detail
