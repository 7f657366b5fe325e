#pragma once

#include <functional>

#include <sys/types.h>

namespace bench {

/// A copy of this process as it is when this is made, which measures on request: a baseline that nothing done later in this
/// process can touch. Make it before anything has started threads: a forked process has none of them.
class Snapshot {
 public:
  /// `measure` runs in the copy, with the number that is asked for.
  explicit Snapshot(const std::function<double(int)>& measure);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Has the copy measure, and waits for the answer.
  double measure(int number) const;

 private:
  pid_t child_;
  int channel_;
};

}  // namespace bench
