#pragma once

#include <apex_cpp/parallel/ddp/module_state.h>
#include <apex_cpp/parallel/ddp/options.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// Which gradients travel together. A plan lists buckets in the order in which they are reduced, each with the indices of its
// parameters in the order in which these lie in it. All parameters of a bucket have one dtype and device.
namespace apex::parallel::detail {

using BucketPlan = std::vector<std::vector<size_t>>;

/// Elements that are worth a message between CPUs (`tools/bench ddp`).
constexpr int64_t kMostOnCpu = 1 << 20;

/// By the order in which gradients came (DDP-04): a bucket closes once it has message_size elements (on a CPU kMostOnCpu if
/// that is less, unless buffers are retained), or with a trigger parameter; what is left over forms the last ones.
BucketPlan plan_by_arrival(const std::vector<NamedTensor>& params, const std::vector<size_t>& arrival,
                           const DistributedDataParallelOptions& options);

/// One bucket for each dtype and device, of the parameters of these indices.
BucketPlan plan_by_type(const std::vector<NamedTensor>& params, const std::vector<size_t>& indices);

/// Rank 0's plan, on every rank. All plans are of the same parameters.
BucketPlan agreed_plan(const ProcessGroup& group, const BucketPlan& mine);

}  // namespace apex::parallel::detail
