#pragma once
// IWYU pragma: private, include <apex_cpp/parallel.h>

#include <apex_cpp/parallel/processes/process_group.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <string>
#include <vector>

namespace apex::parallel {

/// A collective operation over one flat tensor, in place.
using FlatCall = std::function<void(const at::Tensor& flat)>;

/// Calls `call` once for the tensors of each dtype and device, in the order of their first ones: their elements in one flat
/// tensor, which is copied back into them. Dense tensors of any shapes, all ranks with the same list. Apex:
/// `apex.parallel.distributed.flat_dist_call`, whose all_reduce is `all_reduce_mean`.
void flat_dist_call(const std::vector<at::Tensor>& tensors, const FlatCall& call);

/// The mean over the ranks of `group` (null: the default group), for `flat_dist_call`. Errors name `what`.
FlatCall all_reduce_mean(const ProcessGroup& group = nullptr, const std::string& what = "all-reducing flat tensors");
/// The values of rank `root`. Bits are copied, so that any dtype will do.
FlatCall broadcast_from(int root, const ProcessGroup& group = nullptr, const std::string& what = "broadcasting flat tensors");

// Every process of the group calls these, in the same order. c10d's own methods of the group do the same without waiting, and
// with errors that name no ranks. Errors of all: ValueError where this process is not in the group; c10::DistBackendError when
// the operation could not be begun or, over Gloo, failed here or on another rank or took longer than the group's time-out; it
// names the ranks that failed or keep silent, and the group is of no use afterwards. What NCCL runs fails later, on the device:
// c10d's watchdog then ends the process. `what` tells the reader what the operation was for ("summing the losses").

/// In place, over all ranks. On a GPU the current stream waits for the result, on a CPU the caller does.
void all_reduce(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what,
                const c10d::ReduceOp& op = c10d::ReduceOp::SUM);
/// Rank `root`'s tensor becomes every rank's, in place.
void broadcast(const ProcessGroup& group, const at::Tensor& tensor, int root, const std::string& what);

/// Every rank's tensor, in rank order; all have one shape and dtype.
std::vector<at::Tensor> all_gather(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what);

/// Every rank's text, in rank order; lengths may differ. Synchronises with the host.
std::vector<std::string> gather_strings(const ProcessGroup& group, const std::string& mine, const std::string& what);

/// Error (ValueError, on every rank): a rank's text differs from rank 0's; it names the first such rank and the first line that
/// differs. `what` begins the message.
void expect_same(const ProcessGroup& group, const std::string& mine, const std::string& what);

/// Where the group's collective operations want their tensors: this process's GPU for NCCL alone, else the CPU.
at::Device device_for(const ProcessGroup& group);

namespace detail {

/// Waits for an operation that was started on the group, with the errors above. On a CPU its result is there afterwards; on a
/// GPU the current stream waits for it.
void wait(const ProcessGroup& group, const c10::intrusive_ptr<c10d::Work>& work, const std::string& what);

/// The ranks on which `here` is true: the same answer on every rank. Synchronises with the host.
std::vector<int> ranks_where(const ProcessGroup& group, bool here, const std::string& what);

}  // namespace detail
}  // namespace apex::parallel
