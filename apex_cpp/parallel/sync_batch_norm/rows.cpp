#include <apex_cpp/parallel/sync_batch_norm/rows.h>

#include <algorithm>

namespace apex::parallel::detail {
namespace {

// Few enough for the sums' error to stay below float32's last place of the result.
constexpr int64_t kFewRows = 128;
// LibTorch goes over the sums of all channels with every row: these many stay in the first-level cache.
constexpr int64_t kChannelsInCache = 1024;

bool channels_side_by_side(const at::Tensor& batch) { return batch.dim() == 2 || (batch.dim() > 3 && batch.stride(1) == 1); }

}  // namespace

std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const at::Tensor& batch) {
  const int64_t channels = batch.size(1), rows = batch.numel() / channels,
                groups = std::min(rows / kFewRows, kChannelsInCache / channels);
  if (!batch.is_cpu() || !channels_side_by_side(batch) || groups < 2) return {tensor};
  const auto all = tensor.movedim(1, -1).reshape({rows, channels});
  const int64_t rows_in_group = rows / groups, rest = rows % groups;
  std::vector<at::Tensor> parts{all.narrow(0, 0, rows - rest).view({rows_in_group, groups * channels})};
  if (rest > 0) parts.push_back(all.narrow(0, rows - rest, rest));
  return parts;
}

int64_t values_in_group(const at::Tensor& part) { return part.numel() / part.size(1); }

}  // namespace apex::parallel::detail
