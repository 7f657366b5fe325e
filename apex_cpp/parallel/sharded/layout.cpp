#include <apex_cpp/parallel/sharded/layout.h>

#include <algorithm>
#include <tuple>

namespace apex::parallel::detail {
namespace {

// Elements to which shards are rounded up: 128 bytes of 16-bit values, so that every rank's shard begins as memory does.
constexpr int64_t kShardGrain = 64;

bool alike(const BucketLayout& bucket, const ParamSpec& param) {
  return std::tie(bucket.device, bucket.dtype, bucket.grad_dtype, bucket.param_dtype) ==
         std::tie(param.device, param.dtype, param.grad_dtype, param.param_dtype);
}

bool has_room(const BucketLayout& bucket, const ParamSpec& param, int64_t bytes) {
  return (bucket.numel + param.numel) * static_cast<int64_t>(c10::elementSize(param.grad_dtype)) <= bytes;
}

// The last bucket of the parameter's kind, or a new one.
BucketLayout& bucket_for(std::vector<BucketLayout>& buckets, const ParamSpec& param, int64_t bytes) {
  const auto last = std::find_if(buckets.rbegin(), buckets.rend(), [&](const auto& bucket) { return alike(bucket, param); });
  if (last != buckets.rend() && has_room(*last, param, bytes)) return *last;
  return buckets.emplace_back(BucketLayout{param.device, param.dtype, param.grad_dtype, param.param_dtype, {}, 0, 0});
}

int64_t shard_size_of(int64_t numel, int ranks) {
  const int64_t grains = (numel + kShardGrain - 1) / kShardGrain;
  return (grains + ranks - 1) / ranks * kShardGrain;
}

}  // namespace

Part BucketLayout::part_of(const Slot& slot, int rank) const {
  const int64_t shard_begin = rank * shard_size;
  const int64_t begin = std::max(slot.begin, shard_begin);
  const int64_t end = std::min(slot.begin + slot.numel, shard_begin + shard_size);
  if (begin >= end) return {};
  return {begin - slot.begin, end - begin, begin - shard_begin};
}

std::vector<BucketLayout> lay_out(const std::vector<ParamSpec>& params, int64_t bytes, int ranks) {
  std::vector<BucketLayout> buckets;
  for (auto param = params.rbegin(); param != params.rend(); ++param) {
    BucketLayout& bucket = bucket_for(buckets, *param, bytes);
    bucket.slots.push_back({param->index, bucket.numel, param->numel});
    bucket.numel += param->numel;
  }
  for (auto& bucket : buckets) bucket.shard_size = shard_size_of(bucket.numel, ranks);
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const auto& a, const auto& b) { return a.slots.back().param > b.slots.back().param; });
  return buckets;
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset()); }

}  // namespace apex::parallel::detail
