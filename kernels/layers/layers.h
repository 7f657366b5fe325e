#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Memory-bound layers on 16-bit CPU tensors. Arithmetic is float32; every result is rounded to its dtype once, to nearest even.
// No autograd. Results have the same bits at any number of threads and with any instruction set. The caller checks shapes,
// dtypes and devices.
namespace apex::kernels {

// Elementwise functions. All tensors are dense and have one size, one layout and one 16-bit dtype. An output may be an input.

// max(x, 0); NaN stays NaN, and -0 stays -0.
void relu(const at::Tensor& x, const at::Tensor& y);
// grad_y where x > 0 or x is NaN, else 0. `x` may also be the result of relu.
void relu_backward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& grad_x);
// a + b, for BFloat16 only.
void add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sum);

// Batch normalization of BFloat16 tensors whose channels are innermost in memory: `rows` times `channels`.
struct BatchNormShape {
  int64_t rows, channels;
};

// True if kernels support the shape: the number of elements is a multiple of 16, and lcm(channels, 16) is at most 4096.
bool has_batch_norm(BatchNormShape shape);

// Float32 tensors of shape [channels], as are all per-channel tensors below. The variance is biased: the mean of squared
// deviations.
struct BatchStatistics {
  at::Tensor mean, variance;
};

// Mean and variance of x. Deviations are taken from a value near the mean and summed in float32 within blocks of 8192 elements,
// in float64 over the blocks. The blocks depend on the shape alone.
BatchStatistics batch_statistics(BatchNormShape shape, const at::Tensor& x);

// 1 / sqrt(variance + eps)
at::Tensor inverse_std(const at::Tensor& variance, double eps);

// running = (1 - momentum) * running + momentum * factor * value, in place. Any strides.
void update_running(const at::Tensor& running, const at::Tensor& value, double factor, double momentum);

// The per-channel values of the normalization.
struct BatchNormChannels {
  at::Tensor weight, bias, mean, inv_std;
};

// y = (x - mean) * (inv_std * weight) + bias
void batch_norm_forward(BatchNormShape shape, const at::Tensor& x, const BatchNormChannels& channels, const at::Tensor& y);

struct BatchNormGrads {
  at::Tensor weight, bias;
};

// Returns the gradients. The input's gradient is written to `grad_x` if it is defined. `by_batch`: `channels` holds the
// statistics of this batch, not running statistics.
BatchNormGrads batch_norm_backward(BatchNormShape shape, const at::Tensor& grad_y, const at::Tensor& x,
                                   const BatchNormChannels& channels, bool by_batch, const at::Tensor& grad_x);

}  // namespace apex::kernels
