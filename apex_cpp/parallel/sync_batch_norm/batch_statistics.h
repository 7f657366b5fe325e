#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <vector>

// LibTorch's CPU kernels sum channels that are adjacent in memory one value at a time in float32, which loses digits over many
// rows. For such a batch these functions pass the kernels a view with many more channels and few rows each, and merge the
// results in float64. Nothing is copied unless the layouts differ.
namespace apex::parallel::detail {

/// Divides `tensor`, [N, C, *], into parts [rows, groups * C], chosen by the layout of `batch`, which has the same shape.
/// Returns `tensor` as the only part where no digits would be lost.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const at::Tensor& batch);

/// The number of values per channel in each group of a part.
int64_t values_in_group(const at::Tensor& part);

/// Mean and biased variance of a batch, [C], and the number of values per channel, []. All in float64.
struct BatchStatistics {
  at::Tensor mean, variance, count;
};

/// The statistics of this rank's `input`, [N, C, *]; zeros for an empty input.
BatchStatistics statistics_of(const at::Tensor& input);

/// The statistics of the batches of all ranks. Collective.
/// Errors: for a batch on the CPU, ValueError on all ranks if they have no more than one value per channel.
BatchStatistics joined(const BatchStatistics& mine, const ProcessGroup& group);

/// Moves the running statistics, of any floating dtype, by `momentum` towards the batch's mean and unbiased variance.
void follow(const BatchStatistics& batch, double momentum, at::Tensor running_mean, at::Tensor running_var);

/// The dtype of the arithmetic on values of `dtype`.
inline c10::ScalarType arithmetic_type(c10::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// Passes over all values of a batch [N, C, *]. Tensors per channel have the shape [C] and the arithmetic dtype.

/// `input` in a layout that LibTorch's batch norm kernels take without a copy: contiguous, or channels-last.
at::Tensor in_kernel_layout(const at::Tensor& input);

/// The map of a value to (value - mean) * scale.
struct Centring {
  at::Tensor mean, scale;
};
/// Centres `a` and `b`, which have the same shape and layout, and returns their sum in their dtype.
at::Tensor sum_of_centred(const at::Tensor& a, const Centring& of_a, const at::Tensor& b, const Centring& of_b);

/// Sums over the batch, per channel, in float64.
struct GradSums {
  at::Tensor grad;            // of grad
  at::Tensor grad_deviation;  // of grad * (input - mean)
};
/// `grad` in the layout of `input`. Zeros for an empty batch.
GradSums sums_of_grad(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inv_std);

}  // namespace apex::parallel::detail
