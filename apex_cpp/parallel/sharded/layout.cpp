#include <apex_cpp/parallel/sharded/layout.h>

#include <apex_cpp/parallel/processes/collectives.h>
#include "kernels/multi_tensor.h"
#include "kernels/rules/quantized.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace apex::parallel::detail {
namespace {

// Shards are rounded up to this many elements, 128 bytes of 16-bit values, so that every rank's shard is aligned.
constexpr int64_t kShardGrain = 64;
static_assert(kShardGrain % kernels::rules::kGroup == 0, "a group of moments belongs to one rank");

// The first element of a parameter that is added to the bucket.
int64_t next_begin(const BucketLayout& bucket) { return kernels::rules::group_count(bucket.numel) * kernels::rules::kGroup; }

bool alike(const BucketLayout& bucket, const ParamSpec& param) {
  return std::tie(bucket.device, bucket.dtype, bucket.grad_dtype, bucket.param_dtype) ==
         std::tie(param.device, param.dtype, param.grad_dtype, param.param_dtype);
}

bool has_room(const BucketLayout& bucket, const ParamSpec& param, int64_t bytes) {
  return (next_begin(bucket) + param.numel) * static_cast<int64_t>(c10::elementSize(param.grad_dtype)) <= bytes;
}

// The last bucket with the parameter's device and dtypes if it has space, otherwise a new one.
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
    bucket.slots.push_back({param->index, next_begin(bucket), param->numel});
    bucket.numel = bucket.slots.back().begin + param->numel;
  }
  for (auto& bucket : buckets) bucket.shard_size = shard_size_of(bucket.numel, ranks);
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const auto& a, const auto& b) { return a.slots.back().param > b.slots.back().param; });
  return buckets;
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset()); }

namespace {

// A group may have one backend per kind of device.
bool is_nccl(const ProcessGroup& group, const at::Tensor& tensor) {
  return tensor.is_cuda() && group->getBackend(at::kCUDA)->getBackendName() == "nccl";
}

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.view(at::kByte); }

// ((piece 0 + piece 1) + piece 2) + ..., each sum rounded to float32.
at::Tensor sum_in_order(const std::vector<at::Tensor>& pieces) {
  const at::Tensor sum = at::empty(pieces[0].sizes(), pieces[0].options().dtype(at::kFloat));
  const at::Tensor unread = at::zeros({1}, sum.options().dtype(at::kInt));
  for (size_t rank = 1; rank < pieces.size(); ++rank) {
    kernels::multi_tensor_axpby(unread, {rank == 1 ? pieces[0] : sum}, {pieces[rank]}, {sum}, 1, 1, kernels::CheckArg::y);
  }
  return sum;
}

}  // namespace

ReduceScatter::ReduceScatter(ProcessGroup group, at::Tensor pieces, std::string what)
    : group_(std::move(group)), what_(std::move(what)), sent_(std::move(pieces)) {
  const int ranks = group_->getSize();
  if (ranks == 1) {
    received_ = sent_;
  } else if (is_nccl(group_, sent_)) {
    received_ = at::empty({sent_.numel() / ranks}, sent_.options());
    work_ = group_->_reduce_scatter_base(received_, sent_);
  } else {
    received_ = at::empty_like(sent_);
    at::Tensor to = bytes_of(received_), from = bytes_of(sent_);
    std::vector<int64_t> equal_parts;
    work_ = group_->alltoall_base(to, from, equal_parts, equal_parts);
  }
}

at::Tensor ReduceScatter::finish() {
  if (work_) wait(group_, work_, what_);
  const bool added = received_.numel() < sent_.numel();
  sent_.reset();
  if (added || group_->getSize() == 1) return std::exchange(received_, at::Tensor()).to(at::kFloat);
  return sum_in_order(std::exchange(received_, at::Tensor()).chunk(group_->getSize()));
}

AllGather::AllGather(ProcessGroup group, at::Tensor part, std::string what)
    : group_(std::move(group)), what_(std::move(what)), part_(std::move(part)) {
  const int ranks = group_->getSize();
  if (ranks == 1) {
    all_ = part_;
    return;
  }
  all_ = at::empty({part_.numel() * ranks}, part_.options());
  at::Tensor to = bytes_of(all_), from = bytes_of(part_);
  work_ = group_->_allgather_base(to, from);
}

at::Tensor AllGather::finish() {
  if (work_) wait(group_, work_, what_);
  part_.reset();
  return std::exchange(all_, at::Tensor());
}

}  // namespace apex::parallel::detail
