#pragma once

#include <optional>

#include <apex_cpp/parallel/processes/process_group.h>

// How `convert_syncbn_model` marks a batch norm of LibTorch as synchronized. A program calls `forward` of LibTorch's class,
// which is not virtual and reaches apex_cpp only as the operator `aten::batch_norm`. Of the operator's arguments only `eps`
// comes from the module's options, which casts, moves to a device, clones, copies and loads leave as they are. So the
// conversion replaces `eps` by a number 2e-11 of it away, and a table has the original eps, the group and the layout for this
// number. design_notes.md says why no buffer, child module or map of tensors can do this.
namespace apex::parallel::detail {

/// What the table has for a marked eps.
struct SyncMark {
  double eps = 0;      // the original one
  ProcessGroup group;  // null: the default group at the time of the call
  bool channel_last = false;
};

/// Enters `mark` into the table; returns the eps for the module's options. Equal marks have equal results. Thread-safe. Entries
/// stay until the process ends.
double marked(const SyncMark& mark);

/// The entry of a marked eps; none for any other eps. Thread-safe.
std::optional<SyncMark> mark_of(double eps);

/// Registers the kernel of `aten::batch_norm` that reads marks. Errors: RuntimeError if another copy of apex_cpp is loaded.
void register_marked_batch_norm();

}  // namespace apex::parallel::detail
