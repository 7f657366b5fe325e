#pragma once

#include <ATen/core/Tensor.h>

#include <apex_cpp/parallel/processes/process_group.h>

namespace apex::parallel::detail {

/// What belongs to a batch norm beside its input; each may be undefined.
struct NormTensors {
  at::Tensor weight, bias, running_mean, running_var;
};

/// How one batch is normalized.
struct NormSettings {
  double momentum = 0;
  double eps = 0;
  bool channel_last = false;
  /// The ranks whose batches are joined; null, or of one rank: this one's batch is normalized alone.
  ProcessGroup group;
};

/// `input` [N, C, *], or [N, *, C] with channel_last, normalized by the statistics of the batches of all ranks, which the
/// running statistics follow; recorded by autograd. Dtypes, devices and errors are SyncBatchNorm's.
at::Tensor normalize_by_batch(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings);

/// The same by the running statistics: LibTorch's operator.
at::Tensor normalize_by_running(const at::Tensor& input, const NormTensors& tensors, const NormSettings& settings);

}  // namespace apex::parallel::detail
