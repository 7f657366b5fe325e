#pragma once

#include <functional>
#include <vector>

#include "cases.h"

namespace bench::kernels {

/// The memory traffic of a pass over lists of tensors, list by list. Tensors of one index have the same number of elements.
enum class Access { read, write, update };
struct Traffic {
  Tensors tensors;
  Access access;
};
using PassTraffic = std::vector<Traffic>;

/// Bytes that the passes read and write.
double bytes_of(const std::vector<PassTraffic>& passes);

/// How a processor may be told to walk memory. Which is fastest depends on the machine.
struct Way {
  bool fetches;      // loops fetch what comes next, and do not leave it to the processor
  bool past_caches;  // lists that are written only are not kept in the caches
};

/// Makes that traffic and computes nothing: how fast any program with these passes can be. Values that a pass updates stay
/// what they are, and what it writes becomes zero.
///
/// On the CPU the hand-written loop of stream_cpu.cpp. On other devices copies from one half of a buffer to the other, half of
/// these bytes from and half to, and there is one way.
std::function<void()> stream(std::vector<PassTraffic> passes, const Way& way);

}  // namespace bench::kernels
