#pragma once

#include <string>
#include <vector>

#include "../runner.h"
#include "stream.h"

namespace bench::kernels {

/// One way to do the work.
struct Contender {
  std::string name;
  std::function<void()> call;
};

/// Ways to do the same work on the same tensors, ours first, and the memory traffic that ours cannot do without.
struct Comparison {
  std::vector<Contender> contenders;
  std::vector<PassTraffic> passes;
};

/// Measures the contenders and the bound by turns, and adds a result: the medians in microseconds, the bandwidth of the first,
/// and how many times its time each other one takes.
void compare(Runner& runner, const std::string& group, const std::string& name, const Comparison& comparison);

}  // namespace bench::kernels
