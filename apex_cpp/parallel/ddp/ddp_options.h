#pragma once
// IWYU pragma: private, include <apex_cpp/parallel.h>

#include <ATen/core/Tensor.h>
#include <apex_cpp/parallel/processes/process_group.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace apex::parallel {

/// Options of DistributedDataParallel, with Apex's names and defaults.
struct DistributedDataParallelOptions {
  /// A bucket is reduced when it has this many gradient elements. Buckets of CPU tensors have at most 2^20, the size at which
  /// backward pass and reduction overlap best, unless `retain_allreduce_buffers` is set. Ignored with
  /// `allreduce_trigger_params`.
  TORCH_ARG(int64_t, message_size) = 10000000;
  /// Reduce once per dtype, at the end of the backward pass. Nothing overlaps then, but each rank may leave other parameters
  /// unused. All ranks must still use every SyncBatchNorm.
  TORCH_ARG(bool, delay_allreduce) = false;
  /// Apex's old name of `delay_allreduce`. Setting it is an error.
  TORCH_ARG(std::optional<bool>, shared_param);
  /// A bucket is reduced when the gradient of one of these has arrived, whatever its size.
  TORCH_ARG(std::vector<at::Tensor>, allreduce_trigger_params);
  /// Gradients share the memory of the reduced buffers, which `allreduce_buffers()` returns.
  TORCH_ARG(bool, retain_allreduce_buffers) = false;
  /// Sum 16-bit gradients in float32. Sends twice as many bytes.
  TORCH_ARG(bool, allreduce_always_fp32) = false;
  /// The number of groups among which buckets alternate. Each group has its own stream (NCCL) or threads (Gloo).
  TORCH_ARG(int64_t, num_allreduce_streams) = 1;
  /// These groups; by default they are made. As many as `num_allreduce_streams`, at least two, with the same ranks in the same
  /// order.
  TORCH_ARG(std::vector<ProcessGroup>, allreduce_communicators);
  /// Divide sums by the number of ranks. If it is false and a step has several backward passes, keep all but the last within
  /// `no_sync`: without amp and at O0, O3 and O4, as in Apex, a pass sums again what earlier passes have summed.
  TORCH_ARG(bool, gradient_average) = true;
  /// Gradients are divided by this before the sum, to keep 16-bit sums in range. With `gradient_average` the rest of the
  /// division follows after the sum.
  TORCH_ARG(double, gradient_predivide_factor) = 1.0;
  /// Names buckets in profiles (Apex: NVTX ranges).
  TORCH_ARG(bool, prof) = false;
  /// Null: the default group.
  TORCH_ARG(ProcessGroup, process_group);
  /// Copy rank 0's buffers to all ranks at construction, not only its parameters. Sparse buffers stay those of each rank.
  TORCH_ARG(bool, broadcast_buffers) = true;
};

namespace detail {

/// Errors: ValueError for shared_param, for several streams or trigger parameters with delay_allreduce, for a number of
/// communicators that is one or differs from num_allreduce_streams, and for numbers that are not positive.
void check(const DistributedDataParallelOptions& options);

/// The first group of `groups_for`; does not make the others.
ProcessGroup first_group_for(const DistributedDataParallelOptions& options);

/// Errors: ValueError, on every rank, with the first option that differs between ranks although it must not.
void check_same_on_all_ranks(const DistributedDataParallelOptions& options);

/// The groups among which buckets alternate, with the first one. Collective if groups must be made. Errors: ValueError if they
/// cannot be made because the group does not have all processes.
std::vector<ProcessGroup> groups_for(const DistributedDataParallelOptions& options);

}  // namespace detail
}  // namespace apex::parallel
