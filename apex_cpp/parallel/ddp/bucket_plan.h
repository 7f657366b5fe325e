#pragma once

#include <apex_cpp/parallel/ddp/ddp_options.h>
#include <apex_cpp/parallel/ddp/module_state.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// Assigns gradients to buckets. A plan lists buckets in the order of their reduction, each with the indices of its parameters
// in memory order. All parameters of a bucket have the same dtype and device.
namespace apex::parallel::detail {

using BucketPlan = std::vector<std::vector<size_t>>;

/// The bucket size for CPUs, in elements (measured by `tools/bench ddp`).
constexpr int64_t kMostOnCpu = 1 << 20;

/// Assigns gradients in order of arrival (DDP-04). A bucket is full with message_size elements (on a CPU at most kMostOnCpu,
/// unless buffers are retained) or with a trigger parameter. The rest forms the last buckets.
BucketPlan plan_by_arrival(const std::vector<NamedTensor>& params, const std::vector<size_t>& arrival,
                           const DistributedDataParallelOptions& options);

/// One bucket per dtype and device, for the parameters with these indices.
BucketPlan plan_by_type(const std::vector<NamedTensor>& params, const std::vector<size_t>& indices);

/// Returns rank 0's plan on every rank. All plans must have the same parameters.
BucketPlan agreed_plan(const ProcessGroup& group, const BucketPlan& mine);

}  // namespace apex::parallel::detail
