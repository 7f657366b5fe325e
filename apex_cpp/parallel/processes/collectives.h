#pragma once

#include <apex_cpp/parallel/processes/process_group.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <string>
#include <vector>

namespace apex::parallel::detail {

/// Where the group's collective operations want their tensors: this process's GPU for NCCL alone, else the CPU.
at::Device device_for(const ProcessGroup& group);

/// Waits for an operation that was started on the group. On a CPU its result is there afterwards; on a GPU the current stream
/// waits for it. `what` tells a reader of errors what the operation was ("all-reducing bucket 3").
/// Errors: c10::DistBackendError when it failed here or on another rank, or took longer than the group's time-out. It names
/// the ranks that failed or keep silent. The group is of no use afterwards.
void wait(const ProcessGroup& group, const c10::intrusive_ptr<c10d::Work>& work, const std::string& what);

/// In place, over all ranks, with the errors of `wait`.
void all_reduce(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what,
                const c10d::ReduceOp& op = c10d::ReduceOp::SUM);
void broadcast(const ProcessGroup& group, const at::Tensor& tensor, int root, const std::string& what);

/// Every rank's tensor, in rank order; all have one shape and dtype.
std::vector<at::Tensor> all_gather(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what);

/// Every rank's text, in rank order; lengths may differ.
std::vector<std::string> gather_strings(const ProcessGroup& group, const std::string& mine, const std::string& what);

/// Error (ValueError, on every rank): a rank's text differs from rank 0's; it names the first such rank and the first line that
/// differs. `what` begins the message.
void expect_same(const ProcessGroup& group, const std::string& mine, const std::string& what);

}  // namespace apex::parallel::detail
