#pragma once
// IWYU pragma: private, include <apex_cpp/parallel.h>

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace apex::parallel {

/// PyTorch's process group: its methods (allreduce, broadcast, …) are c10d's.
using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroup>;

/// How the processes find each other and communicate.
struct ProcessGroupOptions {
  /// "gloo" (CPU tensors, and CUDA tensors through host memory), "nccl" (CUDA tensors), or "cpu:gloo,cuda:nccl", the same on
  /// all ranks. Empty: the backend that other ranks name; else both if this build has NCCL and every rank has its own GPU, and
  /// gloo otherwise.
  TORCH_ARG(std::string, backend);
  /// "env://": MASTER_ADDR and MASTER_PORT, which torchrun sets. "tcp://HOST:PORT": an address that rank 0 serves.
  /// "file://PATH": a new file that all processes can access; the last process to leave removes it.
  TORCH_ARG(std::string, init_method) = "env://";
  /// The rank of this process, in [0, world_size); -1: the environment variable RANK.
  TORCH_ARG(int, rank) = -1;
  /// The number of processes; -1: the environment variable WORLD_SIZE.
  TORCH_ARG(int, world_size) = -1;
  /// How long a process waits for the others, at the start and in every collective operation.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(30);
};

/// Connects to the other processes and returns the group of all processes, which becomes the default group of apex::parallel.
/// Needs no options under `torchrun --no-python`, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand. With NCCL
/// the process uses the GPU of its LOCAL_RANK, or the only GPU that it sees. Afterwards amp prints its properties on rank 0
/// only, and SIGPIPE no longer ends the process, unless the program handles the signal: the death of another process is an
/// error. Apex: torch.distributed.init_process_group. Errors (c10::Error, naming rank and variable): a variable that is missing
/// or not a number, a rank outside the world, two processes with one rank, different world sizes, a port or file that cannot be
/// used, ranks that did not connect within the timeout; a second call without destroy_process_group.
ProcessGroup init_process_group(const ProcessGroupOptions& options = {});

/// The group of all processes. Error: init_process_group has not been called.
ProcessGroup default_process_group();

/// Whether there is a default group: init_process_group was called, and destroy_process_group was not called since.
bool is_initialized();

/// Forgets the default group. Objects that hold the group may still use it; if none does, the call waits for what NCCL has in
/// flight, as in Python. Afterwards all processes may create another.
void destroy_process_group();

/// Creates a group of some of the default group's ranks, in the given order. Every process must call this with the same ranks.
/// A process outside the group gets a group for which `is_member` is false and which every function here refuses. Errors: no
/// ranks, a rank twice or outside the world.
ProcessGroup new_group(const std::vector<int>& ranks);

/// Whether this process is in a group that `new_group` returned.
bool is_member(const ProcessGroup& group);

/// `group`, or the default group if `group` is null; options named process_group use this. Error: ValueError if this process is
/// not in the group.
ProcessGroup or_default(const ProcessGroup& group);

}  // namespace apex::parallel

namespace apex::parallel::detail {

/// Whether any rank has reported a failure, in this group or in another. Asks the store.
bool any_failure(const ProcessGroup& group);

/// Reports to the other ranks that this rank failed in `what` because of `cause`, collects their reports for some seconds, and
/// throws c10::DistBackendError. The error names this rank, the cause, the other ranks' reports and the ranks that do not
/// answer: these have ended, hang, or are busy elsewhere. The group cannot be used afterwards.
[[noreturn]] void fail(const ProcessGroup& group, const std::string& what, const std::string& cause);

}  // namespace apex::parallel::detail
