#pragma once

#include <memory>

#include "kernels/plan/plan.h"

namespace apex::kernels::plan {

using Groups = std::shared_ptr<const std::vector<Group>>;

// check_lists and make_groups, with the results of this thread's last calls at hand: lists whose tensors have the addresses,
// dtypes, devices and layouts of an earlier call get the groups of that call. Both depend on nothing else, so it does not
// matter whether they are the same tensors; none is kept alive.
Groups checked_groups(const char* op, TensorLists lists);

}  // namespace apex::kernels::plan
