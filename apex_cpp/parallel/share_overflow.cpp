#include <apex_cpp/parallel/share_overflow.h>

#include <apex_cpp/parallel/processes/collectives.h>

#include <utility>

namespace apex::parallel {

OverflowSharing::OverflowSharing(ProcessGroup group)
    : before_(amp::detail::set_overflow_exchange([group = std::move(group)](bool found_here) {
        return detail::ranks_where(group, found_here, "sharing overflows of scale_loss");
      })) {}

OverflowSharing::OverflowSharing(OverflowSharing&& other) noexcept
    : before_(std::move(other.before_)), in_force_(std::exchange(other.in_force_, false)) {}

OverflowSharing::~OverflowSharing() {
  if (in_force_) amp::detail::set_overflow_exchange(std::move(before_));
}

}  // namespace apex::parallel
