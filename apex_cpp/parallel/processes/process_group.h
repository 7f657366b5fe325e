#pragma once
// IWYU pragma: private, include <apex_cpp/parallel.h>

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace apex::parallel {

/// A group of processes, PyTorch's own: its methods (allreduce, broadcast, …) are c10d's.
using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroup>;

/// Where the processes meet, and how they talk.
struct ProcessGroupOptions {
  /// "gloo" (CPU tensors, and CUDA tensors by way of the host), "nccl" (CUDA tensors), or "cpu:gloo,cuda:nccl", the same on all
  /// ranks. Empty: what other ranks were given; else both where this build has NCCL and every rank a GPU to itself, and gloo
  /// where not.
  TORCH_ARG(std::string, backend);
  /// "env://": MASTER_ADDR and MASTER_PORT, which torchrun sets. "tcp://HOST:PORT": rank 0 serves there. "file://PATH": a file
  /// that all processes see and that does not exist before; the last of them to leave removes it.
  TORCH_ARG(std::string, init_method) = "env://";
  /// This process, in [0, world_size); -1: the environment's RANK.
  TORCH_ARG(int, rank) = -1;
  /// How many processes there are; -1: the environment's WORLD_SIZE.
  TORCH_ARG(int, world_size) = -1;
  /// How long one process waits for the others: at the start, and in every collective operation.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(30);
};

/// Meets the other processes and answers the group of all, which from then on is the default of everything in apex::parallel.
/// Under `torchrun --no-python`, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand, it needs no options.
/// With NCCL the process takes the GPU of its LOCAL_RANK, or the only one it sees. From then on amp prints its properties on
/// rank 0 alone, and SIGPIPE, unless the program handles it, no longer ends the process: a peer that died is an error. Apex:
/// torch.distributed.init_process_group. Errors (c10::Error, naming rank and variable): a variable that is missing or no
/// number, a rank outside the world, two processes with one rank, world sizes that differ, a port or file that cannot be used,
/// ranks that did not come within the time-out; a second call without destroy_process_group.
ProcessGroup init_process_group(const ProcessGroupOptions& options = {});

/// The group of all processes. Error: init_process_group was not called.
ProcessGroup default_process_group();

/// Whether there is a default group: init_process_group was called, and destroy_process_group not since.
bool is_initialized();

/// Forgets the default group; objects that hold it go on using it. Another may be made, by all processes.
void destroy_process_group();

/// A group of some of the default group's ranks, in the order given: every process calls this, with the same ranks. One that is
/// not among them gets a group that everything here refuses, and of which `is_member` is false. Errors: no ranks, a rank twice
/// or outside the world.
ProcessGroup new_group(const std::vector<int>& ranks);

/// Whether this process is in a group that `new_group` answered.
bool is_member(const ProcessGroup& group);

/// `group`, or the default group if that is null: how options named process_group are read. Error (ValueError): this process is
/// not in the group.
ProcessGroup or_default(const ProcessGroup& group);

}  // namespace apex::parallel

namespace apex::parallel::detail {

/// Whether a rank of the group, or one in another group, has reported a failure; a question to the store.
bool any_failure(const ProcessGroup& group);

/// Tells the other ranks that this one's part of `what` failed because of `cause`, hears for some seconds what they have to
/// report, and throws c10::DistBackendError that names this rank, the cause, the others' reports and the ranks that keep
/// silent: those have ended, hang, or are busy elsewhere. The group is of no use afterwards.
[[noreturn]] void fail(const ProcessGroup& group, const std::string& what, const std::string& cause);

}  // namespace apex::parallel::detail
