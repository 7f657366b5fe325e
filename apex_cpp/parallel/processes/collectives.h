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

/// Calls `call` once for each dtype and device, in the order of their first tensors, with the elements of all such tensors in
/// one flat tensor, and copies the result back. Takes dense tensors of any shapes, the same list on all ranks. Apex:
/// `apex.parallel.distributed.flat_dist_call`, whose all_reduce is `all_reduce_mean`.
void flat_dist_call(const std::vector<at::Tensor>& tensors, const FlatCall& call);

/// The mean over the ranks of `group` (null: the default group), for `flat_dist_call`. Errors name `what`.
FlatCall all_reduce_mean(const ProcessGroup& group = nullptr, const std::string& what = "all-reducing flat tensors");
/// Copies the values of rank `root` bit by bit, for any dtype.
FlatCall broadcast_from(int root, const ProcessGroup& group = nullptr, const std::string& what = "broadcasting flat tensors");

// Every process of the group calls these functions, in the same order. c10d's methods of the group do the same without waiting,
// with errors that name no ranks. Errors of all functions: ValueError if this process is not in the group;
// c10::DistBackendError if the operation could not start or, over Gloo, failed on any rank or took longer than the group's
// timeout. The error names the ranks that failed or do not answer; the group cannot be used afterwards. NCCL operations fail
// later, on the device: c10d's watchdog then ends the process. `what` says in messages what the operation was for ("summing the
// losses").

/// Reduces in place over all ranks, a tensor of any strides, whose elements may not share memory as those of an expanded one;
/// the sum of bools is true if one of them is. On a GPU the current stream waits for the result, on a CPU the caller waits.
void all_reduce(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what,
                const c10d::ReduceOp& op = c10d::ReduceOp::SUM);
/// Copies rank `root`'s tensor to every rank's tensor, in place. Strides may differ.
void broadcast(const ProcessGroup& group, const at::Tensor& tensor, int root, const std::string& what);

/// Returns every rank's tensor, in rank order. All must have the same shape and dtype.
std::vector<at::Tensor> all_gather(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what);

/// Returns every rank's text, in rank order. Lengths may differ. Synchronises with the host.
std::vector<std::string> gather_strings(const ProcessGroup& group, const std::string& mine, const std::string& what);

/// Checks that all ranks have the same text. Error: ValueError on every rank, which names the first rank whose text differs
/// from rank 0's and the first line that differs. `what` begins the message.
void expect_same(const ProcessGroup& group, const std::string& mine, const std::string& what);

/// The device for tensors of the group's collective operations: this process's GPU if NCCL is the only backend, else the CPU.
at::Device device_for(const ProcessGroup& group);

namespace detail {

/// Waits for an operation that was started on the group, with the errors above. On a CPU the result is ready afterwards; on a
/// GPU the current stream waits for it.
void wait(const ProcessGroup& group, const c10::intrusive_ptr<c10d::Work>& work, const std::string& what);

/// The device on which messages about `tensor` are sent: its own, or a GPU if the group has only NCCL.
at::Device message_device(const ProcessGroup& group, const at::Tensor& tensor);

/// As `all_reduce`, for a tensor on any device: `message_device` reduces a copy, if need be.
void all_reduce_copy(const ProcessGroup& group, const at::Tensor& tensor, const std::string& what, const c10d::ReduceOp& op);

/// Returns the ranks on which `here` is true, on every rank. Synchronises with the host.
std::vector<int> ranks_where(const ProcessGroup& group, bool here, const std::string& what);

}  // namespace detail
}  // namespace apex::parallel
