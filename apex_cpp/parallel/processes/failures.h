#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

#include <string>

namespace apex::parallel::detail {

/// Whether a rank of the group, or one in another group, has reported a failure; a question to the store.
bool any_failure(const ProcessGroup& group);

/// Tells the other ranks that this one's part of `what` failed because of `cause`, hears for some seconds what they have to
/// report, and throws c10::DistBackendError that names this rank, the cause, the others' reports and the ranks that keep
/// silent: those have ended, hang, or are busy elsewhere. The group is of no use afterwards.
[[noreturn]] void fail(const ProcessGroup& group, const std::string& what, const std::string& cause);

}  // namespace apex::parallel::detail
