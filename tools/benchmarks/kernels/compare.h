#pragma once

#include <string>
#include <vector>

#include "../runner.h"
#include "stream.h"

namespace bench::kernels {

/// One implementation of the work.
struct Contender {
  std::string name;
  std::function<void()> call;
};

/// Implementations of the same work on the same tensors, apex_cpp's first, and the minimum memory traffic of apex_cpp's.
struct Comparison {
  std::vector<Contender> contenders;
  std::vector<PassTraffic> passes;
};

/// Measures the implementations and the traffic bound in turn and adds a result: medians in microseconds, the bandwidth of the
/// first implementation, and the ratio of each other time to the first.
void compare(Runner& runner, const std::string& group, const std::string& name, const Comparison& comparison);

}  // namespace bench::kernels
