#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace apex::amp::detail {

/// Times that differ by less than this share count as equal.
inline constexpr double kEqualTimes = 0.1;
/// Rounds after which times are looked at, and then every `kMoreRounds`.
inline constexpr int64_t kFirstRounds = 8, kMoreRounds = 4;

/// A median, and an interval that holds it with a probability of 99 % or more.
struct Interval {
  double median = 0, low = 0, high = 0;
};

/// Of eight values or more it lies between two of them, whatever their distribution is; of fewer it is Student's on logarithms.
/// One value says nothing: from 0 to Inf. `values` are above 0; of none the median is NaN.
Interval median_interval(std::vector<double> values);

/// How the time of one level compares with another's.
enum class Order { faster, slower, equal, unknown };

/// By the interval of the ratio of the two times: equal where all of it is within `kEqualTimes` of 1, faster where all of it
/// is below 1, slower where all of it is above, and unknown where neither holds.
Order order_of(const Interval& ratio);

/// The times of levels that took turns: `rounds[r][l]` is that of level l in round r. What slows the machine down for a while
/// slows down all levels of a round, so levels are compared round by round.
using Rounds = std::vector<std::vector<double>>;

/// Of the time of level `a` by that of level `b`.
Interval ratio_interval(const Rounds& rounds, size_t a, size_t b);
/// Whether the order of two levels is unknown.
bool has_unknown_order(const Rounds& rounds);
/// Whether another round is needed: there are fewer than `kFirstRounds`, or the order of two levels is unknown, which is looked
/// at every `kMoreRounds`. Never more than `most`; of one level there is nothing to compare.
bool needs_rounds(const Rounds& rounds, int64_t most);

/// The two tables that a report reads, without their headers: a row for each level, and one for each pair of them. `group` is
/// what rows begin with: the config and the number of processes.
inline constexpr const char* kTimesHeader = "config,processes,level,rounds,step_ms,low_ms,high_ms\n";
inline constexpr const char* kRatiosHeader = "config,processes,level,other,rounds,ratio,low,high,order\n";
struct TimedGroup {
  std::string config;
  int64_t processes = 1;
  std::vector<std::string> levels;
  Rounds rounds;
};
std::string times_rows(const TimedGroup& group);
std::string ratios_rows(const TimedGroup& group);

/// Counts what LibTorch's allocators hand out and take back while a `Counting` lives: on its thread and in the backward passes
/// that it starts. Only blocks that were counted when they were handed out count when they come back. What oneDNN, cuDNN and
/// the like take from the system by themselves does not come by here.
class TensorMemory : public c10::MemoryReportingInfoBase {
 public:
  /// On one kind of device, or on all.
  explicit TensorMemory(std::optional<c10::DeviceType> of = std::nullopt) : of_(of) {}

  void reportMemoryUsage(void* block, int64_t bytes, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override;
  bool memoryProfilingEnabled() const override { return counts_; }

  /// From now on nothing is counted, and allocations cost no more than without this.
  void stop() { counts_ = false; }

  /// Bytes that are in use.
  int64_t live() const;
  /// The most that were in use at once, since this was asked for the last time.
  int64_t take_peak();

 private:
  const std::optional<c10::DeviceType> of_;
  std::atomic<bool> counts_{true};
  mutable std::mutex mutex_;
  std::unordered_map<void*, int64_t> blocks_;
  int64_t live_ = 0, peak_ = 0;
};

class Counting {
 public:
  /// Allocators report to whatever stands in the profiler's place.
  explicit Counting(std::shared_ptr<TensorMemory> memory) : guard_(c10::DebugInfoKind::PROFILER_STATE, std::move(memory)) {}

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace apex::amp::detail
