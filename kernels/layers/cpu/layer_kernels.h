#pragma once

#include <cstdint>

// Tables of loops over 16-bit elements, one table per instruction set. Source files that define a table share no inline code
// with other files (see kernels/cpu/isa.h).
namespace apex::kernels::layers {

// A block of rows with `size` elements in total, a multiple of `period`. Per-channel values repeat after `period` elements, a
// multiple of 16.
struct Rows {
  int64_t size, period;
};

struct LayerKernels {
  // `infinity`: the bits of the dtype's infinity.
  void (*relu)(const uint16_t* x, uint16_t* y, int64_t size, uint16_t infinity);
  void (*relu_backward)(const uint16_t* grad_y, const uint16_t* x, uint16_t* grad_x, int64_t size, uint16_t infinity);
  void (*add)(const uint16_t* a, const uint16_t* b, uint16_t* sum, int64_t size);

  // For each of `period` positions: the sums of x - center and of its squares.
  void (*deviations)(Rows rows, const uint16_t* x, const float* center, float* sums, float* squares);
  // (x - mean) * factor + offset
  void (*normalize)(Rows rows, const uint16_t* x, const float* mean, const float* factor, const float* offset, uint16_t* y);
  // For each of `period` positions: the sums of grad_y and of grad_y * (x - mean).
  void (*grad_sums)(Rows rows, const uint16_t* grad_y, const uint16_t* x, const float* mean, float* sums, float* products);
  // grad_y * factor + (x - mean) * slope + offset
  void (*grad_input)(Rows rows, const uint16_t* grad_y, const uint16_t* x, const float* mean, const float* factor,
                     const float* slope, const float* offset, uint16_t* grad_x);
};

extern const LayerKernels kPortableLayers;
extern const LayerKernels kAvx2Layers;
extern const LayerKernels kAvx512Layers;
extern const LayerKernels kAvx512Bf16Layers;

const LayerKernels& current_layers();

}  // namespace apex::kernels::layers
