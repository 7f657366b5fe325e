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

/// Makes that traffic and computes nothing: how fast any program with these passes can be. Values that a pass updates stay
/// what they are, and what it writes becomes zero.
///
/// On the CPU the hand-written loop of stream_cpu.cpp, with stores past the caches for lists that are written only, or not. On
/// other devices copies from one half of a buffer to the other, half of these bytes from and half to; `past_caches` is
/// ignored.
std::function<void()> stream(std::vector<PassTraffic> passes, bool past_caches);

}  // namespace bench::kernels
