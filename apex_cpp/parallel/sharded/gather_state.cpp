#include <apex_cpp/parallel/sharded/gather_state.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <apex_cpp/parallel/processes/collectives.h>

#include <algorithm>
#include <string>
#include <vector>

namespace apex::parallel::detail {

at::Tensor gather_on_rank_0(ShardedGrads& sync, size_t index, const at::Tensor& part) {
  const int ranks = sync.group()->getSize();
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < ranks; ++rank) sizes.push_back(sync.part_of(index, rank).numel);
  const int64_t most = *std::max_element(sizes.begin(), sizes.end());
  if (most == 0) return sync.rank() == 0 ? at::empty_like(sync.param(index), part.options()) : at::Tensor();
  const at::Tensor padded = at::zeros({most}, part.options());
  padded.narrow(0, 0, part.numel()).copy_(part);
  auto parts = all_gather(sync.group(), padded, "gathering the state of parameter " + std::to_string(index));
  if (sync.rank() != 0) return {};
  for (int rank = 0; rank < ranks; ++rank) parts[rank] = parts[rank].narrow(0, 0, sizes[rank]);
  const at::Tensor& param = sync.param(index);
  const at::Tensor full =
      at::empty_like(param, at::TensorOptions().device(at::kCPU).dtype(part.scalar_type()).requires_grad(false));
  flat(full).copy_(at::cat(parts));
  return full;
}

}  // namespace apex::parallel::detail
