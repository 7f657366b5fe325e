#pragma once

#include <ATen/Parallel.h>

#include "kernels/convolution/axis.h"

namespace apex::kernels::convolution::cpu {

constexpr int64_t kMultipliedInTask = 1024 * 1024;  // products that are worth a thread

inline int64_t tasks_worth_a_thread(int64_t work, int64_t work_in_task) {
  return ceil_div(work_in_task, std::max<int64_t>(1, work));
}

// Calls visit(i) for i < count, on threads that have a task's work each.
template <class Visit>
void in_parallel(int64_t count, int64_t work, int64_t work_in_task, const Visit& visit) {
  at::parallel_for(0, count, tasks_worth_a_thread(work, work_in_task), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) visit(i);
  });
}

}  // namespace apex::kernels::convolution::cpu
