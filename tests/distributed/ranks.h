#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

namespace apex::testing {

/// This process among those that run the same tests side by side.
inline int rank() { return parallel::default_process_group()->getRank(); }
inline int world_size() { return parallel::default_process_group()->getSize(); }

}  // namespace apex::testing
