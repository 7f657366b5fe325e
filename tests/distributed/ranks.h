#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

namespace apex::testing {

/// This process among the ranks that run the same tests.
inline int rank() { return parallel::default_process_group()->getRank(); }
inline int world_size() { return parallel::default_process_group()->getSize(); }

}  // namespace apex::testing
