#pragma once

#include <apex_cpp/amp/scaling/overflow_exchange.h>
#include <apex_cpp/parallel/processes/process_group.h>

namespace apex::parallel {

/// While it lives, processes share overflows: `share_overflow`.
class [[nodiscard]] OverflowSharing {
 public:
  explicit OverflowSharing(ProcessGroup group);
  OverflowSharing(OverflowSharing&& other) noexcept;
  OverflowSharing& operator=(OverflowSharing&&) = delete;
  ~OverflowSharing();

 private:
  amp::detail::OverflowExchange before_;
  bool in_force_ = true;
};

/// At the end of every `amp::scale_loss` block that looks for overflow, the processes of `group` (null: the default group) tell
/// each other whether they have found one, and all skip the step if one has; `amp::step_result` names the ranks. For models
/// whose parts lie on different processes, and gradients that are averaged after the block or not at all:
/// DistributedDataParallel, which reduces before amp looks, needs none of it. All of them must open and end the same blocks.
/// One small collective operation for each block; the host waits for it.
inline OverflowSharing share_overflow(const ProcessGroup& group = nullptr) { return OverflowSharing(or_default(group)); }

}  // namespace apex::parallel
