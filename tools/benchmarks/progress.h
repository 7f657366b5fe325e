#pragma once

#include <chrono>
#include <string>

namespace bench {

/// Says on standard error how far the benchmarks are: on a terminal one line that is drawn over and over, elsewhere one line a
/// benchmark.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start(const std::string& benchmark);
  void round(int done, int rounds);
  /// Takes the line away, for output to come.
  void clear();

 private:
  bool live_;
  bool drawn_ = false;
  std::string benchmark_;
  std::chrono::steady_clock::time_point drawn_at_;
};

}  // namespace bench
