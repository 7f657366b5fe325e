#include <apex_cpp/multi_tensor_apply/host_blocks.h>

#include <ATen/Parallel.h>

#include <algorithm>

namespace apex::amp_C::detail {

void for_each_host_block(int blocks, int64_t elements, c10::function_ref<void(int begin, int end)> run) {
  constexpr int64_t kElementsPerThread = 32768;
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread * blocks / std::max<int64_t>(1, elements));
  at::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) { run(static_cast<int>(begin), static_cast<int>(end)); });
}

}  // namespace apex::amp_C::detail
