#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace bench {

/// The middle value; of an even number of values, the mean of the two in the middle. Not of an empty list.
double median(std::vector<double> values);

/// One of several ways to do the same thing.
struct Variant {
  std::string name;
  std::function<double()> round;                      // runs one round of it and answers the nanoseconds that one call took
  int most_rounds = std::numeric_limits<int>::max();  // at least 1; if there are more, it sits out some, evenly
};

/// What every variant measured, by variant, then by round.
using Rounds = std::vector<std::vector<double>>;

/// Runs the variants by turns, so that all of them see the same machine; which one goes first rotates. The first turn warms up
/// and is not counted. `after_round` is called with the number of rounds that are done.
Rounds interleave(const std::vector<Variant>& variants, int rounds, const std::function<void(int)>& after_round);

/// Runs from when it is made.
class Stopwatch {
 public:
  double nanoseconds() const { return std::chrono::duration<double, std::nano>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Nanoseconds a call of `f`, over `calls` calls.
double nanoseconds_per_call(const std::function<void()>& f, int calls);
/// How many calls of `f` fill about `seconds`; at least one.
int calls_in(const std::function<void()>& f, double seconds);

}  // namespace bench
