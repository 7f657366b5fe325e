#pragma once

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/plan/plan.h"

namespace apex::kernels::cpu {

// Calls visit(i) for each chunk i of the group, on all threads if there is enough work.
template <class Visit>
void for_each_chunk(const plan::Group& group, const Visit& visit) {
  constexpr int64_t kGrain = 32768;  // elements worth a thread
  const auto count = static_cast<int64_t>(group.chunks.size());
  const int64_t chunks_per_thread = std::max<int64_t>(1, kGrain * count / std::max<int64_t>(1, group.numel));
  at::parallel_for(0, count, chunks_per_thread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) visit(i);
  });
}

}  // namespace apex::kernels::cpu
