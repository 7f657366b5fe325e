#pragma once

#include <algorithm>
#include <cstdint>

// One spatial axis of a convolution: output position o reads, for tap k, input position o * stride + k * dilation - padding,
// where there is one.
namespace apex::kernels::convolution {

// Positions begin <= i < end.
struct Span {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Axis {
  int64_t input, output, kernel, stride, padding, dilation;
  // Where input position 0 lies in memory, and how far apart positions are, in positions of the tensor.
  int64_t first = 0, step = 1;

  int64_t offset(int64_t tap) const { return tap * dilation - padding; }

  // Those of `outputs` that have an input for this tap.
  Span valid(int64_t tap, Span outputs) const {
    const int64_t begin = std::max(outputs.begin, ceil_div(std::max<int64_t>(0, -offset(tap)), stride));
    const int64_t end = std::min(outputs.end, ceil_div(std::max<int64_t>(0, input - offset(tap)), stride));
    return {begin, std::max(begin, end)};
  }

  // The inputs that `outputs`, which are not none, read.
  Span inputs_of(Span outputs) const {
    const int64_t begin = std::max<int64_t>(0, outputs.begin * stride + offset(0));
    const int64_t end = std::min(input, (outputs.end - 1) * stride + offset(kernel - 1) + 1);
    return {begin, std::max(begin, end)};
  }

  // A kernel of one tap reads every stride-th input: the same axis with only those.
  Axis without_unread() const {
    if (kernel != 1) return *this;
    const Span read = valid(0, {0, output});
    return {read.size(), output, 1, 1, read.begin, 1, read.begin * stride - padding, stride};
  }
};

}  // namespace apex::kernels::convolution
