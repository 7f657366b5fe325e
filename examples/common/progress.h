#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace common {

/// The progress of a task.
struct Standing {
  std::string task;
  int64_t done = 0;  // out of `total` steps
  int64_t total = 1;
  std::string details;      // further text to show; may be empty
  double seconds_left = 0;  // for the whole program, or for this task if the program's total is unknown
};

/// The progress as one line of at most `width` characters, with a bar if it fits.
std::string progress_line(const Standing& standing, int width);

/// 75 -> "1:15", 3675 -> "1:01:15".
std::string clock_time(double seconds);

/// Properties of the output that the display writes to.
struct Terminal {
  bool live = false;  // true if a line can be redrawn
  int width = 79;
};

/// The properties of a file descriptor. It is live if it is a terminal that can move its cursor.
Terminal terminal_of(int descriptor);

/// Shows a program's progress. On a terminal it redraws a single line; elsewhere it prints a plain line every half minute, so
/// that logs stay readable. Plain ASCII without colours.
class Progress {
 public:
  Progress(std::ostream& out, Terminal terminal) : out_(out), terminal_(terminal) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Logs the name of the task. On a terminal the first `show` does so.
  void begin(const std::string& task);
  void show(const Standing& standing);
  /// Prints a permanent line.
  void line(const std::string& text);
  /// Removes the redrawn line before other output.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::ostream& out_;
  Terminal terminal_;
  Clock::time_point last_ = Clock::now();
  bool drawn_ = false;
};

}  // namespace common
