#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

// One spatial axis of a convolution. For tap k, output position o reads input position o * stride + k * dilation - padding if
// it lies inside the input.
namespace apex::kernels {

namespace convolution {

// The positions begin <= i < end.
struct Span {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Axis {
  int64_t input, output, kernel, stride, padding, dilation;
  // The position in the tensor of input position 0, and the distance between input positions.
  int64_t first = 0, step = 1;

  int64_t offset(int64_t tap) const { return tap * dilation - padding; }

  // The positions of `outputs` whose input for this tap lies inside the image.
  Span valid(int64_t tap, Span outputs) const {
    const int64_t begin = std::max(outputs.begin, ceil_div(std::max<int64_t>(0, -offset(tap)), stride));
    const int64_t end = std::min(outputs.end, ceil_div(std::max<int64_t>(0, input - offset(tap)), stride));
    return {begin, std::max(begin, end)};
  }

  // The range of inputs that `outputs` reads. `outputs` must not be empty.
  Span inputs_of(Span outputs) const {
    const int64_t begin = std::max<int64_t>(0, outputs.begin * stride + offset(0));
    const int64_t end = std::min(input, (outputs.end - 1) * stride + offset(kernel - 1) + 1);
    return {begin, std::max(begin, end)};
  }

  // A kernel with one tap reads every stride-th input. Returns the equivalent axis over these inputs only.
  Axis without_unread() const {
    if (kernel != 1) return *this;
    const Span read = valid(0, {0, output});
    return {read.size(), output, 1, 1, read.begin, 1, read.begin * stride - padding, stride};
  }
};

}  // namespace convolution

// Common parts of the bfloat16 2d convolution kernels for CPUs with AVX512-BF16. Products are exact. As in that instruction
// set, subnormal values count as zero. Sums are FP32, in an order that depends on the shapes alone, at any number of threads.
// Results are rounded once and are channels-last. Outputs and input gradients next to the left or right border may include
// products with zero padding: NaN if a weight is not finite.

/// Stride, padding and dilation of a convolution, for height and width.
struct ConvolutionSteps {
  std::array<int64_t, 2> stride, padding, dilation;
};

/// True if this build has the kernels and the processor can run them.
bool has_convolutions();

/// True if the kernels are there and faster than LibTorch's: not on a processor with AMX-BF16, even if oneDNN is restricted to
/// a lesser instruction set.
bool has_fast_convolutions();

// Divides one spatial axis of a convolution, or of its input gradient, into passes. All results of a pass sum over the same
// taps.
namespace convolution {

struct Tap {
  int64_t tap, offset;
};

// Result i < count, at position first + i * step, reads for each tap the operand at i * operand_step + offset, if that lies
// inside the image.
struct Pass {
  int64_t first, step, count, operand_step;
  std::vector<Tap> taps;
};

// The passes of the forward convolution.
inline std::vector<Pass> output_passes(const Axis& axis) {
  Pass pass{0, 1, axis.output, axis.stride, {}};
  for (int64_t tap = 0; tap < axis.kernel; ++tap) pass.taps.push_back({tap, axis.offset(tap)});
  return {pass};
}

// The passes of the input gradient: one for each remainder of the stride, because these inputs are read by different taps.
inline std::vector<Pass> input_grad_passes(const Axis& axis) {
  std::vector<Pass> passes;
  for (int64_t first = 0; first < std::min(axis.stride, axis.input); ++first) {
    Pass pass{first, axis.stride, ceil_div(axis.input - first, axis.stride), 1, {}};
    for (int64_t tap = 0; tap < axis.kernel; ++tap) {
      const int64_t way = first - axis.offset(tap);
      if (way % axis.stride == 0) pass.taps.push_back({tap, way / axis.stride});
    }
    passes.push_back(pass);
  }
  return passes;
}

}  // namespace convolution
}  // namespace apex::kernels
