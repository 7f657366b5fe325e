#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

// Layer and RMS normalisation over the last dimensions, forward and backward, without autograd (apex_cpp/normalization has it).
//
// A tensor of any shape is read as `rows` of `size` elements, the normalised ones. Dtypes: float16, bfloat16 and float32 in
// any mix, or float64 throughout. Statistics and all arithmetic are float32, or float64; every result is rounded to its dtype
// once, to nearest even.
// Devices: CPU tensors, and CUDA tensors in builds with CUDA, where work goes to the current stream and nothing waits.
// The order of all sums depends on the shape alone: the same bits at any number of threads, on the CPU and on CUDA.
// Errors: c10::NotImplementedError for any other device. Shapes, dtypes and devices are the caller's to check; tensors are
// contiguous.
namespace apex::kernels {

enum class NormKind { layer, rms };

struct NormShape {
  int64_t rows, size;
};

// `weight` and `bias` have `size` elements, or are undefined for 1 and 0; `bias` is only for NormKind::layer.
struct NormAffine {
  at::Tensor weight, bias;
};

struct NormForward {
  at::Tensor output;   // shaped like the input, in the dtype of `weight`, or of the input without weight
  at::Tensor mean;     // [rows] in the dtype of the arithmetic; undefined for NormKind::rms
  at::Tensor inv_std;  // [rows]: 1 / sqrt(variance + eps), or of the mean square for NormKind::rms
};

// Apex: fused_layer_norm_cuda.forward, forward_affine, forward_affine_mixed_dtypes, and those with rms_.
NormForward norm_forward(NormKind kind, NormShape shape, const at::Tensor& input, const NormAffine& affine, double eps);

// What the backward pass works from: the input with its mean, or else the output (memory_efficient), from which normalised
// values are recovered by way of weight and bias. Where |weight| < eps they cannot be: eps stands in for it (NORM-05).
struct NormSaved {
  at::Tensor input_or_output, mean, inv_std;
  bool is_output = false;
  double eps = 0;
};

// Those that are not needed stay undefined. The gradient of the input has `input_dtype`, the others have their tensors' dtypes.
struct NormGrads {
  at::Tensor input, weight, bias;
};

// `needs`: which of the three. Apex: fused_layer_norm_cuda.backward, backward_affine, and those with rms_.
NormGrads norm_backward(NormKind kind, NormShape shape, const at::Tensor& grad_output, const NormSaved& saved,
                        const NormAffine& affine, at::ScalarType input_dtype, std::array<bool, 3> needs);

}  // namespace apex::kernels

// What the drivers are given: allocated outputs, and nothing to do where there are no elements.
namespace apex::kernels::normalization {

struct ForwardCall {
  NormKind kind;
  NormShape shape;
  at::Tensor input;
  NormAffine affine;
  double eps;
  NormForward out;
};

struct BackwardCall {
  NormKind kind;
  NormShape shape;
  at::Tensor grad_output;
  NormSaved saved;
  NormAffine affine;
  NormGrads out;
};

}  // namespace apex::kernels::normalization
