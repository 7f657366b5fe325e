#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace train {

/// What one training step has to tell.
struct StepReport {
  int64_t epoch = 1;  // from 1
  int64_t epochs = 1;
  int64_t step = 1;  // within the epoch, from 1
  int64_t steps = 1;
  double loss = 0;
  double loss_scale = 1;
  int64_t skipped = 0;  // steps skipped so far in the run
  double images_per_second = 0;
  double seconds_left = 0;  // of the run
};

/// The report as one line of at most `width` characters, a bar included where there is room for one.
std::string progress_line(const StepReport& report, int width);

/// 75 -> "1:15", 3675 -> "1:01:15".
std::string clock_time(double seconds);

/// Shows steps on one line that is drawn over again where the output is a terminal (`live`), and otherwise as a plain line
/// every half minute, so that a log stays readable. Plain ASCII without colours.
class Progress {
 public:
  Progress(std::ostream& out, bool live, int width) : out_(out), live_(live), width_(width) {}

  void step(const StepReport& report);
  /// Prints a line that stays.
  void line(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::ostream& out_;
  bool live_;
  int width_;
  Clock::time_point last_ = Clock::now();
  bool drawn_ = false;
};

/// Standard output's progress: live where it is a terminal that can move its cursor.
Progress terminal_progress();

}  // namespace train
