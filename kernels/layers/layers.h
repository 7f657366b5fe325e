#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Layers that read and write memory and compute little, on 16-bit CPU tensors: arithmetic in float32, every result rounded to
// its dtype once, to nearest even. Without autograd. The same bits at any number of threads and with any instruction set.
// Shapes, dtypes and devices are the caller's to check.
namespace apex::kernels {

// Tensors of one size and one 16-bit dtype, dense and laid out alike. An output may be an input.

// max(x, 0); NaN stays NaN, and -0 stays -0.
void relu(const at::Tensor& x, const at::Tensor& y);
// grad_y where x is above 0 or NaN, else 0. `x` may be relu's result instead.
void relu_backward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& grad_x);
// a + b. BFloat16 alone.
void add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sum);

// Batch normalisation of BFloat16 tensors whose channels stand next to each other in memory: `rows` times `channels`.
struct BatchNormShape {
  int64_t rows, channels;
};

// Whether there are kernels for the shape: a whole number of 16 elements, and channels that repeat at such a number soon.
bool has_batch_norm(BatchNormShape shape);

// Float32 tensors of [channels], as all that belongs to channels below. The variance is biased: the mean of squared deviations.
struct BatchStatistics {
  at::Tensor mean, variance;
};

// Of deviations from a value near the mean, in blocks that depend on the shape alone: in float32 within a block of 8192
// elements, in float64 over the blocks.
BatchStatistics batch_statistics(BatchNormShape shape, const at::Tensor& x);

// 1 / sqrt(variance + eps)
at::Tensor inverse_std(const at::Tensor& variance, double eps);

// running = (1 - momentum) * running + momentum * factor * value; any strides.
void update_running(const at::Tensor& running, const at::Tensor& value, double factor, double momentum);

// What the channels are normalised with.
struct BatchNormChannels {
  at::Tensor weight, bias, mean, inv_std;
};

// y = (x - mean) * (inv_std * weight) + bias
void batch_norm_forward(BatchNormShape shape, const at::Tensor& x, const BatchNormChannels& channels, const at::Tensor& y);

struct BatchNormGrads {
  at::Tensor weight, bias;
};

// The gradients; that of the input goes to `grad_x`, unless it is undefined. `by_batch`: mean and inv_std are the input's own,
// and not running ones.
BatchNormGrads batch_norm_backward(BatchNormShape shape, const at::Tensor& grad_y, const at::Tensor& x,
                                   const BatchNormChannels& channels, bool by_batch, const at::Tensor& grad_x);

}  // namespace apex::kernels
