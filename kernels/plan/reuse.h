#pragma once

#include <memory>

#include "kernels/plan/plan.h"

namespace apex::kernels::plan {

// The groups of a call.
struct Plan {
  std::vector<Group> groups;
  size_t count;  // tensors in each list, empty ones included
  // What a driver made from the groups and keeps as long as they are remembered. Plans do not leave their thread.
  mutable std::shared_ptr<void> kept_by_driver;

  auto begin() const { return groups.begin(); }
  auto end() const { return groups.end(); }
  size_t size() const { return groups.size(); }
  const Group& operator[](size_t i) const { return groups[i]; }
};

using Groups = std::shared_ptr<const Plan>;

// check_lists and make_groups, with the results of this thread's last calls at hand: lists whose tensors have the addresses,
// dtypes, devices and layouts of an earlier call get the groups of that call. Both depend on nothing else, so it does not
// matter whether they are the same tensors; none is kept alive.
Groups checked_groups(const char* op, TensorLists lists);

// Lets go of what this thread remembers.
void forget_calls();

}  // namespace apex::kernels::plan
