#pragma once

#include <ATen/core/Tensor.h>

#include <apex_cpp/parallel/processes/process_group.h>

namespace apex::parallel::detail {

/// The tensors of a batch norm. Each may be undefined.
struct NormTensors {
  at::Tensor weight, bias, running_mean, running_var;
};

/// The settings of one call.
struct NormSettings {
  double momentum = 0;
  double eps = 0;
  bool channel_last = false;
  /// The ranks whose batches are joined. Null, or a group of one rank: this rank's batch is normalized alone.
  ProcessGroup group;
};

/// Normalizes `input`, [N, C, *] or with channel_last [N, *, C], by the statistics of the batches of all ranks, and updates the
/// running statistics. Differentiable. Dtypes, devices and errors as documented at SyncBatchNorm.
at::Tensor normalize_by_batch(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings);

/// Normalizes `input` by the running statistics, with LibTorch's operator.
at::Tensor normalize_by_running(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings);

}  // namespace apex::parallel::detail
