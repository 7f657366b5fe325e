#pragma once

#include <functional>

#include <sys/types.h>

namespace bench {

/// A fork of this process that measures on request: a baseline unaffected by anything this process does later. Create it before
/// any thread starts, because a fork has none of its parent's other threads.
class Snapshot {
 public:
  /// `measure` runs in the fork, with the requested number.
  explicit Snapshot(const std::function<double(int)>& measure);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Measures in the fork and waits for the result.
  double measure(int number) const;

 private:
  pid_t child_;
  int channel_;
};

}  // namespace bench
