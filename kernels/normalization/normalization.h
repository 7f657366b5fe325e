#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

// Layer and RMS normalization over the last dimensions, forward and backward. No autograd; apex_cpp/normalization adds it.
//
// A tensor of any shape is read as `rows` of `size` normalized elements. Dtypes: any mix of float16, bfloat16 and float32, or
// float64 throughout. Statistics and arithmetic are float32, or float64 for float64 tensors. Every result is rounded to its
// dtype once, to nearest even.
// Devices: CPU tensors, and CUDA tensors in builds with CUDA, where work is enqueued on the current stream without waiting. The
// order of all sums depends on the shape alone, so results have the same bits at any number of threads, on CPU and CUDA.
// Errors: c10::NotImplementedError for any other device. The caller checks shapes, dtypes and devices; tensors must be
// contiguous.
namespace apex::kernels {

enum class NormKind { layer, rms };

struct NormShape {
  int64_t rows, size;
};

// `weight` and `bias` have `size` elements; undefined means 1 and 0. Only NormKind::layer uses `bias`.
struct NormAffine {
  at::Tensor weight, bias;
};

struct NormForward {
  at::Tensor output;   // shaped like the input, in the dtype of `weight`, or of the input if `weight` is undefined
  at::Tensor mean;     // [rows] in the dtype of the arithmetic; undefined for NormKind::rms
  at::Tensor inv_std;  // [rows]: 1 / sqrt(variance + eps); for NormKind::rms, of the mean square
};

// Apex: fused_layer_norm_cuda.forward, forward_affine, forward_affine_mixed_dtypes and their rms_ variants.
NormForward norm_forward(NormKind kind, NormShape shape, const at::Tensor& input, const NormAffine& affine, double eps);

// The saved tensors of a forward pass: the input with its mean, or the output (memory_efficient), from which weight and bias
// recover the normalized values. If |weight| < eps, they cannot be recovered, and eps replaces the weight (NORM-05).
struct NormSaved {
  at::Tensor input_or_output, mean, inv_std;
  bool is_output = false;
  double eps = 0;
};

// Gradients that are not needed stay undefined. The input gradient has `input_dtype`, the others have the dtypes of their
// tensors.
struct NormGrads {
  at::Tensor input, weight, bias;
};

// `needs`: which of the three gradients to compute. Apex: fused_layer_norm_cuda.backward, backward_affine and their rms_
// variants.
NormGrads norm_backward(NormKind kind, NormShape shape, const at::Tensor& grad_output, const NormSaved& saved,
                        const NormAffine& affine, at::ScalarType input_dtype, std::array<bool, 3> needs);

}  // namespace apex::kernels

// Arguments of the drivers. Outputs are allocated, and there is at least one element.
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
