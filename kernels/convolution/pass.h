#pragma once

#include <vector>

#include "kernels/convolution/axis.h"

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
