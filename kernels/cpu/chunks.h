#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

#include "kernels/plan/plan.h"

namespace apex::kernels::cpu {

// Calls visit(i) for each chunk i of the group, on all threads if there is enough work. Threads take the next few chunks when
// they are done with theirs: chunks differ in size, and a thread may be held up by other work on its core.
template <class Visit>
void for_each_chunk(const plan::Group& group, const Visit& visit) {
  constexpr int64_t kShare = 32768;  // elements that are worth a thread, and taken at a time
  const auto count = static_cast<int64_t>(group.chunks.size());
  const int64_t share = std::max<int64_t>(1, kShare * count / std::max<int64_t>(1, group.numel));
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), (count + share - 1) / share);
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t begin = next.fetch_add(share); begin < count; begin = next.fetch_add(share)) {
      for (int64_t i = begin; i < std::min(begin + share, count); ++i) visit(i);
    }
  });
}

}  // namespace apex::kernels::cpu
