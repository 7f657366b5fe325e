#pragma once

#include <cstdint>

// Tables of loops over bfloat16 elements, one table per instruction set. Source files that define a table share no inline code
// with other files (see kernels/cpu/isa.h).
namespace apex::kernels::float8 {

// What distinguishes the formats, as float32 bits.
struct Format {
  int largest_exponent;  // of the largest value, 1.75 * 2^largest_exponent
  int dropped_bits;      // of float32's mantissa
  uint32_t largest;      // magnitude
  uint32_t least_normal;
};

constexpr Format kE4m3 = {8, 20, 0x43e00000, 0x3c800000};
constexpr Format kE5m2 = {15, 21, 0x47600000, 0x38800000};

// A scale and its reciprocal.
struct Scale {
  float scale, inverse;
};

// A run of elements, of which every `columns` share a block; the last block may be shorter.
struct Run {
  int64_t size, columns;
};

struct Float8Kernels {
  // For each block: the largest of its elements' magnitudes, as bits, and of what `largest` holds.
  void (*add_largest)(const uint16_t* x, Run run, uint16_t* largest);
  // round(x * scale) / scale; NaN stays NaN, and larger values become the format's largest.
  void (*round_to_e4m3)(const uint16_t* x, Run run, const Scale* scales, uint16_t* y);
  void (*round_to_e5m2)(const uint16_t* x, Run run, const Scale* scales, uint16_t* y);
};

extern const Float8Kernels kPortableFloat8;
extern const Float8Kernels kAvx2Float8;
extern const Float8Kernels kAvx512Float8;

const Float8Kernels& current_float8();

}  // namespace apex::kernels::float8
