#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace bench {

/// The median; for an even number of values, the mean of the two in the middle. `values` must not be empty.
double median(std::vector<double> values);

/// One of several implementations to compare.
struct Variant {
  std::string name;
  std::function<double()> round;                      // runs one round and returns the nanoseconds per call
  int most_rounds = std::numeric_limits<int>::max();  // at least 1; with more rounds, it skips some, evenly spaced
};

/// Measurements by variant, then by round.
using Rounds = std::vector<std::vector<double>>;

/// Runs the variants in turn, so that all of them see the same machine state; the first variant rotates. The first round is a
/// warmup and is not counted. Calls `after_round` with the number of completed rounds.
Rounds interleave(const std::vector<Variant>& variants, int rounds, const std::function<void(int)>& after_round);

/// Starts when it is constructed.
class Stopwatch {
 public:
  double nanoseconds() const { return std::chrono::duration<double, std::nano>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Nanoseconds per call of `f`, over `calls` calls.
double nanoseconds_per_call(const std::function<void()>& f, int calls);
/// How many calls of `f` take about `seconds`; at least one.
int calls_in(const std::function<void()>& f, double seconds);

}  // namespace bench
