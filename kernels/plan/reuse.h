#pragma once

#include <memory>

#include "kernels/plan/plan.h"

namespace apex::kernels::plan {

// The groups of a call, and what a driver derives from them.
struct Plan {
  std::vector<Group> groups;
  size_t count;  // tensors in each list, empty ones included
  // Data that a driver derives from the groups, cached with the plan. A plan is used by its own thread only.
  mutable std::shared_ptr<void> kept_by_driver;

  auto begin() const { return groups.begin(); }
  auto end() const { return groups.end(); }
  size_t size() const { return groups.size(); }
  const Group& operator[](size_t i) const { return groups[i]; }
};

using Groups = std::shared_ptr<const Plan>;

// check_lists and make_groups, cached for this thread's recent calls: lists whose tensors have the addresses, dtypes, devices
// and layouts of a recent call get that call's groups. The groups depend on nothing else, so the tensor objects may differ. The
// cache keeps no tensor alive.
Groups checked_groups(const char* op, TensorLists lists);

// Empties this thread's cache.
void forget_calls();

}  // namespace apex::kernels::plan
