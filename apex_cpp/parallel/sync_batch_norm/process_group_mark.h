#pragma once

#include <optional>

#include <apex_cpp/parallel/processes/process_group.h>

// How a batch norm of LibTorch's becomes one over several ranks, where a program calls it: its class and its `forward`, which
// is not virtual, stay what they are, and members, Sequentials and handles that hold it go on doing so. Its eps, which reaches
// the operator `aten::batch_norm` with every call, is replaced by a number beside it, 2e-11 of it away, that stands for the eps
// as it was and the group. A mark in the options goes wherever the module does: through casts, moves to a device, clones,
// copies, loads and other threads; it needs neither a weight nor running statistics.
namespace apex::parallel::detail {

/// What a marked eps stands for.
struct SyncMark {
  double eps = 0;
  ProcessGroup group;  // null: the default group as it is at the time of a call
  bool channel_last = false;
};

/// The eps to be written into a module's options: the same for equal marks. Thread-safe; lasts as long as the process.
double marked(const SyncMark& mark);

/// What `eps` stands for; none if it is an ordinary one.
std::optional<SyncMark> mark_of(double eps);

/// Makes sure that the linker keeps the operator that reads marks.
void register_marked_batch_norm();

}  // namespace apex::parallel::detail
