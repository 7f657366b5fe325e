#pragma once

#include <ATen/core/Tensor.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

// Rounding of bfloat16 tensors to 8-bit floats (Micikevicius et al., "FP8 Formats for Deep Learning", 2022), with scales.
namespace apex::kernels {

// E4M3 has 3 bits of mantissa and ends at 448 (c10::Float8_e4m3fn); E5M2 has 2 and ends at 57344 (c10::Float8_e5m2).
enum class Float8 : unsigned char { e4m3, e5m2 };

// The size of the blocks that share a scale, in rows and columns of each matrix. The last block of a row or column may be
// shorter. 0, 0: the whole tensor is one block.
struct Float8Blocks {
  int64_t rows = 0, columns = 0;
  Float8Blocks transposed() const { return {columns, rows}; }
};

// The number of blocks that cover `size` elements.
inline int64_t blocks_in(int64_t size, int64_t block) { return (size + block - 1) / block; }

// 2^126: the reciprocal of the largest scale is no subnormal number.
constexpr int kLargestScaleExponent = 126;

struct Float8Values {
  at::Tensor values;  // bfloat16, with the sizes and the memory order of x, or contiguous
  at::Tensor scales;  // float32: [matrices, blocks of rows, blocks of columns]; [1] for the whole tensor
};

// Rounds x to 8-bit floats and back: values = round(x * scale) / scale, to nearest, ties to even. Every value is exact in
// bfloat16, except for those that round to 2^128, which are Inf, and those below bfloat16's subnormal numbers.
//
// A scale is the largest power of two with which the block's largest magnitude is within the format, at most 2^126; 1 for a
// block of zeros. This is the reciprocal of the E8M0 scale of the OCP Microscaling (MX) formats, rounded up, and the
// power-of-two scale of TransformerEngine and torchao. A block that holds Inf or NaN is NaN in all its values, and so is its
// scale.
//
// x: bfloat16, [..., rows, columns], any strides and device. No autograd. Does not synchronise with a GPU. CPU tensors take own
// kernels, which give the same bits at any number of threads and with any instruction set; other tensors take LibTorch's
// operators, with the same bits.
Float8Values round_to_float8(const at::Tensor& x, Float8 format, Float8Blocks blocks);

struct Float8ByGivenScale {
  Float8Values rounded;
  at::Tensor largest;  // float32, [1]: the largest magnitude of x; Inf if x holds Inf or NaN
};

// Rounds x with one scale that need not fit its values: larger ones become the format's largest. `scale`: float32, [1], on the
// device of x, a power of two as of `float8_scales`, or 0 for x's own scale. If x holds Inf or NaN, all values are NaN.
Float8ByGivenScale round_to_float8_with(const at::Tensor& x, Float8 format, const at::Tensor& scale);

// A matrix rounded with one scale.
struct Float8Matrix {
  Float8Values rounded;
  Float8 format = Float8::e4m3;
};

// Whether the device multiplies 8-bit floats: a GPU of compute capability 8.9 or more.
bool has_float8_products(c10::Device device);

// a @ b + bias for [M, K], [K, N] and [N], or without a bias, as bfloat16, by at::_scaled_mm. K and N are multiples of 16; not
// both matrices are E5M2. On a CPU, LibTorch's operator is slow.
at::Tensor float8_mm(const Float8Matrix& a, const Float8Matrix& b, const std::optional<at::Tensor>& bias);

// The scales of blocks with these largest magnitudes, float32, any shape and device.
at::Tensor float8_scales(const at::Tensor& largest, Float8 format);

// round_to_float8 and round_to_float8_with by LibTorch's operators, on any device.
Float8Values round_to_float8_by_aten(const at::Tensor& x, Float8 format, Float8Blocks blocks);
Float8ByGivenScale round_to_float8_with_by_aten(const at::Tensor& x, Float8 format, const at::Tensor& scale);

}  // namespace apex::kernels
