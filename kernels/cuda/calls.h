#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/cuda/driver.h"

namespace apex::kernels::cuda {

// The parts of a call that this driver handles: one for each device.
inline std::vector<Call> calls_of(const plan::Groups& plan) {
  std::vector<Call> calls;
  for (const plan::Group& group : *plan) {
    const bool known = std::any_of(calls.begin(), calls.end(), [&](const Call& call) { return call.device == group.device; });
    if (handles(group.device) && !known) calls.push_back({plan, group.device});
  }
  return calls;
}

// The call, if all of its tensors are on the device and this driver handles it.
inline std::optional<Call> whole_call(const plan::Groups& plan, c10::Device device) {
  const bool all = std::all_of(plan->begin(), plan->end(), [&](const plan::Group& group) { return group.device == device; });
  if (plan->size() == 0 || !all || !handles(device)) return std::nullopt;
  return Call{plan, device};
}

}  // namespace apex::kernels::cuda
