#pragma once
// IWYU pragma: private, include <apex_cpp/parallel.h>

#include <ATen/core/Tensor.h>
#include <apex_cpp/parallel/processes/process_group.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace apex::parallel {

/// Options of DistributedDataParallel, under Apex's names and with its defaults.
struct DistributedDataParallelOptions {
  /// A bucket is reduced once it holds that many gradient elements; one of CPU tensors once it holds 2^20, which is where
  /// backward and a reduction hide each other there, unless `retain_allreduce_buffers` shows the buckets. Without effect where
  /// `allreduce_trigger_params` are given.
  TORCH_ARG(int64_t, message_size) = 10000000;
  /// One reduction for each dtype when the backward pass has ended. Nothing overlaps then, but parameters may be left unused,
  /// other ones on each rank; then a SyncBatchNorm in the model must not be among what only some ranks use.
  TORCH_ARG(bool, delay_allreduce) = false;
  /// Apex's old name of `delay_allreduce`: giving it is an error that says so.
  TORCH_ARG(std::optional<bool>, shared_param);
  /// A bucket is reduced once the gradient of one of these has come, whatever it holds.
  TORCH_ARG(std::vector<at::Tensor>, allreduce_trigger_params);
  /// Gradients share the memory of the reduced buffers, which `allreduce_buffers()` answers.
  TORCH_ARG(bool, retain_allreduce_buffers) = false;
  /// Sums of 16-bit gradients are formed in float32, with twice the bytes on the wire.
  TORCH_ARG(bool, allreduce_always_fp32) = false;
  /// Over how many groups, each with a stream (NCCL) or threads (Gloo) of its own, buckets go by turns.
  TORCH_ARG(int64_t, num_allreduce_streams) = 1;
  /// These groups, which else are made: as many as `num_allreduce_streams`, more than one, of the same ranks in one order.
  TORCH_ARG(std::vector<ProcessGroup>, allreduce_communicators);
  /// Divide sums by the number of ranks.
  TORCH_ARG(bool, gradient_average) = true;
  /// What gradients are divided by before they are summed, to keep 16-bit sums in range; with `gradient_average` the rest of
  /// the division comes after, without it nothing does.
  TORCH_ARG(double, gradient_predivide_factor) = 1.0;
  /// Names buckets in profiles (Apex: NVTX ranges).
  TORCH_ARG(bool, prof) = false;
  /// Null: the default group.
  TORCH_ARG(ProcessGroup, process_group);
  /// Every rank begins with rank 0's buffers, too, and not with its parameters alone.
  TORCH_ARG(bool, broadcast_buffers) = true;
};

namespace detail {

/// Errors: ValueError for shared_param, for several streams or trigger parameters beside delay_allreduce, for communicators
/// other in number than num_allreduce_streams or a single one, for numbers that are not positive.
void check(const DistributedDataParallelOptions& options);

/// The first of `groups_for`, without the others.
ProcessGroup first_group_for(const DistributedDataParallelOptions& options);

/// Errors: ValueError, on every rank, which names the first option that differs between ranks of those that must not.
void check_same_on_all_ranks(const DistributedDataParallelOptions& options);

/// The groups that buckets go to by turns, the first one included. Made by all ranks together where they are not given.
/// Errors: ValueError where they cannot be made, since the group is not of all processes.
std::vector<ProcessGroup> groups_for(const DistributedDataParallelOptions& options);

}  // namespace detail
}  // namespace apex::parallel
