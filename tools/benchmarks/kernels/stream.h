#pragma once

#include <functional>
#include <vector>

#include "cases.h"

namespace bench::kernels {

/// The memory traffic of a pass over lists of tensors. Tensors with the same index have the same number of elements.
enum class Access { read, write, update };
struct Traffic {
  Tensors tensors;
  Access access;
};
using PassTraffic = std::vector<Traffic>;

/// Bytes that the passes read and write.
double bytes_of(const std::vector<PassTraffic>& passes);

/// A method of accessing memory. The fastest depends on the machine.
struct Way {
  bool fetches;      // loops prefetch explicitly instead of relying on hardware prefetchers
  bool past_caches;  // write-only lists bypass the caches
};

/// Makes that traffic without any computation: a bound for any program with these passes. Updated values keep their values;
/// written values become zero.
///
/// On the CPU it uses the loops of stream_cpu.cpp. On other devices it copies from one half of a buffer to the other, half of
/// the bytes each way, and ignores `way`.
std::function<void()> stream(std::vector<PassTraffic> passes, const Way& way);

}  // namespace bench::kernels
