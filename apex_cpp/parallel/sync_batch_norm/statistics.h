#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <apex_cpp/parallel/processes/process_group.h>

namespace apex::parallel::detail {

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
