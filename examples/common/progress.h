#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace common {

/// How far a piece of work is.
struct Standing {
  std::string task;
  int64_t done = 0;  // of `total` steps
  int64_t total = 1;
  std::string details;      // what else there is to tell; may be empty
  double seconds_left = 0;  // of the whole program, or of this work where more is not known
};

/// The standing as one line of at most `width` characters, a bar included where there is room for one.
std::string progress_line(const Standing& standing, int width);

/// 75 -> "1:15", 3675 -> "1:01:15".
std::string clock_time(double seconds);

/// What the display writes to.
struct Terminal {
  bool live = false;  // whether a line can be drawn over again
  int width = 79;
};

/// That of a file descriptor: live where it is a terminal that can move its cursor.
Terminal terminal_of(int descriptor);

/// Shows how far a program is on one line that is drawn over again where the output is a terminal, and otherwise as a plain
/// line every half minute, so that a log stays readable. Plain ASCII without colours.
class Progress {
 public:
  Progress(std::ostream& out, Terminal terminal) : out_(out), terminal_(terminal) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Says in a log what begins; on a terminal the first `show` does.
  void begin(const std::string& task);
  void show(const Standing& standing);
  /// Prints a line that stays.
  void line(const std::string& text);
  /// Takes away the line that is drawn over, for output to come.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::ostream& out_;
  Terminal terminal_;
  Clock::time_point last_ = Clock::now();
  bool drawn_ = false;
};

}  // namespace common
