#pragma once
// IWYU pragma: private, include <apex_cpp/amp/comparison.h>

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

/// Two times count as equal if they differ by at most this share.
inline constexpr double kEqualTimes = 0.1;
/// The times are evaluated after `kFirstRounds` rounds, and then after every `kMoreRounds` rounds.
inline constexpr int64_t kFirstRounds = 8, kMoreRounds = 4;

/// A median, and its confidence interval of at least 99 %.
struct Interval {
  double median = 0, low = 0, high = 0;
};

/// For eight values or more the interval lies between two of the values, and holds for any distribution. For two to seven
/// values it is Student's interval on logarithms. For one value it is 0 to Inf. `values` must be above 0. Without values the
/// median is NaN.
Interval median_interval(std::vector<double> values);

/// How the time of one level compares with another's.
enum class Order { faster, slower, equal, unknown };

/// The order of two times by the confidence interval of their ratio: equal if the interval lies within `kEqualTimes` of 1,
/// otherwise faster if it lies below 1, slower if it lies above 1, and unknown if it contains 1.
Order order_of(const Interval& ratio);

/// The times of levels that took turns: `rounds[r][l]` is the time of level l in round r. A slow phase of the machine slows all
/// levels of a round, so levels are compared round by round.
using Rounds = std::vector<std::vector<double>>;

/// Interval of the ratio of level `a`'s time to level `b`'s time.
Interval ratio_interval(const Rounds& rounds, size_t a, size_t b);
/// True if the order of any two levels is unknown.
bool has_unknown_order(const Rounds& rounds);
/// True if another round is needed: the times are not due for evaluation, or the order of two levels is unknown. Always false
/// after `max_rounds` rounds. A single level needs `kFirstRounds` rounds.
bool needs_rounds(const Rounds& rounds, int64_t max_rounds);

/// The headers of the two tables that a report reads: a row for each level, and a row for each pair of levels. Rows begin with
/// the config and the number of processes of their group.
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

/// Counts the bytes that LibTorch's allocators allocate and free while a `Counting` lives: on its thread, and in the backward
/// passes that it starts. Ignores the release of a block whose allocation was not counted. Does not see memory that oneDNN,
/// cuDNN and similar libraries allocate from the system.
class TensorMemory : public c10::MemoryReportingInfoBase {
 public:
  /// Counts on one type of device, or on all.
  explicit TensorMemory(std::optional<c10::DeviceType> device_type = std::nullopt) : device_type_(device_type) {}

  void reportMemoryUsage(void* block, int64_t bytes, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override;
  bool memoryProfilingEnabled() const override { return is_counting_; }

  /// Stops counting. Allocations then cost no more than without this object.
  void stop() { is_counting_ = false; }

  /// Bytes in use.
  int64_t live() const;
  /// The peak of the bytes in use since the last call.
  int64_t take_peak();

 private:
  const std::optional<c10::DeviceType> device_type_;
  std::atomic<bool> is_counting_{true};
  mutable std::mutex mutex_;
  std::unordered_map<void*, int64_t> blocks_;
  int64_t live_ = 0, peak_ = 0;
};

/// Guard: the TensorMemory counts on this thread while the guard lives.
class Counting {
 public:
  /// Takes the profiler's place, because allocators report to the profiler.
  explicit Counting(std::shared_ptr<TensorMemory> memory) : guard_(c10::DebugInfoKind::PROFILER_STATE, std::move(memory)) {}

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace apex::amp::detail
