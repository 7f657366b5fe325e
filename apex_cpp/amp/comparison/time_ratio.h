#pragma once

#include <cstdint>
#include <string>
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

}  // namespace apex::amp::detail
