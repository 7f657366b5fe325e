#include <apex_cpp/parallel/share_overflow.h>

#include <ATen/ops/full.h>
#include <apex_cpp/parallel/processes/collectives.h>

#include <utility>

namespace apex::parallel {
namespace {

std::vector<int> ranks_that_overflowed(const ProcessGroup& group, bool found_here) {
  const auto mine = at::full({1}, found_here ? 1 : 0, at::TensorOptions().dtype(at::kInt).device(device_for(group)));
  std::vector<int> ranks;
  int rank = 0;
  for (const at::Tensor& flag : all_gather(group, mine, "sharing overflows of scale_loss")) {
    if (flag.item<int>() != 0) ranks.push_back(rank);
    ++rank;
  }
  return ranks;
}

}  // namespace

OverflowSharing::OverflowSharing(ProcessGroup group)
    : before_(amp::detail::set_overflow_exchange(
          [group = std::move(group)](bool found_here) { return ranks_that_overflowed(group, found_here); })) {}

OverflowSharing::OverflowSharing(OverflowSharing&& other) noexcept
    : before_(std::move(other.before_)), in_force_(std::exchange(other.in_force_, false)) {}

OverflowSharing::~OverflowSharing() {
  if (in_force_) amp::detail::set_overflow_exchange(std::move(before_));
}

}  // namespace apex::parallel
