#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <vector>

// LibTorch's CPU kernels add up values of a channel that lie side by side with other channels' one by one in float32, so that
// sums over many rows lose digits. Here such a batch is handed to them as one of many more channels with few rows each, whose
// results are then put together in float64. In memory nothing moves, as long as layouts agree.
namespace apex::parallel::detail {

/// A batch [N, C, *] as parts [rows, groups * C], in the division that suits the layout of `batch`, which has the same shape;
/// itself as the only part where no digits are lost.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const at::Tensor& batch);

/// How many values of a channel a part has in each of its groups.
int64_t values_in_group(const at::Tensor& part);

/// A batch's mean and biased variance, of shape [C], and how many values each is of, of shape []. All in float64.
struct BatchStatistics {
  at::Tensor mean, variance, count;
};

/// Of `input` [N, C, *] alone; zeros where it is empty.
BatchStatistics statistics_of(const at::Tensor& input);

/// Of the batches of all ranks. A collective operation.
/// Error: ValueError on all ranks where they have no more than one value a channel, for a batch on the CPU.
BatchStatistics joined(const BatchStatistics& mine, const ProcessGroup& group);

/// Moves the running statistics, of any floating type, by `momentum` towards those of the batch, with the unbiased variance.
void follow(const BatchStatistics& batch, double momentum, at::Tensor running_mean, at::Tensor running_var);

/// The type of arithmetic on values of `dtype`.
inline c10::ScalarType arithmetic_type(c10::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Where the group carries tensors that belong to `tensor`: on its device, or a GPU for CPU tensors under NCCL alone.
at::Device message_device(const ProcessGroup& group, const at::Tensor& tensor);

}  // namespace apex::parallel::detail

// The passes over a batch [N, C, *] that touch every value. Per channel: tensors of shape [C], in the type of arithmetic.
namespace apex::parallel::detail {

/// `input` as one of the layouts that LibTorch's batch norm kernels take without detours: contiguous, or channels-last.
at::Tensor in_kernel_layout(const at::Tensor& input);

/// What is to become of a tensor's values: (value - mean) * scale.
struct Centring {
  at::Tensor mean, scale;
};
/// `a` and `b`, of one shape and layout, centred and added up, in their dtype.
at::Tensor sum_of_centred(const at::Tensor& a, const Centring& of_a, const at::Tensor& b, const Centring& of_b);

/// Sums over the batch, per channel, in float64.
struct GradSums {
  at::Tensor grad;            // of grad
  at::Tensor grad_deviation;  // of grad * (input - mean)
};
/// `grad` in the layout of `input`. Zeros for an empty batch.
GradSums sums_of_grad(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inv_std);

}  // namespace apex::parallel::detail
