#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

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

// What the kernels for 2d convolutions in bfloat16, on CPUs with AVX512-BF16, have in common. Their products are exact, and
// take subnormal values for zero like all of that instruction set; sums are FP32, in an order that depends on the shapes alone,
// whatever the number of threads; results are rounded once, and channels-last. Outputs and gradients of inputs next to a border
// at the left or right may have products of padding, which is zeros: NaN, if a weight is not finite.
namespace apex::kernels {

/// How a convolution moves over its input, for height and width.
struct ConvolutionSteps {
  std::array<int64_t, 2> stride, padding, dilation;
};

/// Whether this build and this processor have the kernels. A processor with AMX-BF16 has faster ones of LibTorch's, so the
/// answer is no, whatever oneDNN is held to.
bool has_convolutions();

}  // namespace apex::kernels

// One spatial axis of a convolution, or of the gradient of its input, in passes over results that are sums over the same taps.
namespace apex::kernels::convolution {

struct Tap {
  int64_t tap, offset;
};

// Result i < count, at position first + i * step, takes for each tap the operand at i * operand_step + offset, where there is
// one.
struct Pass {
  int64_t first, step, count, operand_step;
  std::vector<Tap> taps;
};

// Outputs, of inputs.
inline std::vector<Pass> output_passes(const Axis& axis) {
  Pass pass{0, 1, axis.output, axis.stride, {}};
  for (int64_t tap = 0; tap < axis.kernel; ++tap) pass.taps.push_back({tap, axis.offset(tap)});
  return {pass};
}

// The inputs' gradients, of those of outputs: a stride's inputs are read by different taps.
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

}  // namespace apex::kernels::convolution
