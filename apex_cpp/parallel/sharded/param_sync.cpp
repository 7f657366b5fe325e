#include <apex_cpp/parallel/sharded/param_sync.h>

#include <apex_cpp/parallel/processes/collectives.h>
#include "kernels/multi_tensor.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace apex::parallel::detail {

ParamSync::ParamSync(std::shared_ptr<ShardedGrads> grads) : grads_(std::move(grads)), buckets_(grads_->buckets().size()) {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const auto& layout = grads_->buckets()[i].layout;
    bool any = false;
    for (const Slot& slot : layout.slots) {
      if (present_.size() <= slot.param) present_.resize(slot.param + 1);
      present_[slot.param] = grads_->is_present(slot.param);
      any |= present_[slot.param];
    }
    const auto options = at::TensorOptions().device(layout.device).dtype(layout.param_dtype);
    if (any) buckets_[i].shard = at::empty({layout.shard_size}, options);
  }
}

at::Tensor ParamSync::place_of(size_t index) {
  const Part part = grads_->part_of(index, grads_->rank());
  return buckets_[grads_->place_of(index)->bucket].shard.narrow(0, part.in_shard, part.numel);
}

void ParamSync::start() {
  versions_.resize(present_.size());
  for (size_t i = 0; i < present_.size(); ++i) {
    if (present_[i]) versions_[i] = amp::detail::TensorVersion(grads_->param(i));
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    at::Tensor shard = std::exchange(buckets_[i].shard, at::Tensor());
    if (!shard.defined()) continue;
    buckets_[i].in_flight.emplace(grads_->group(), std::move(shard),
                                  "gathering parameter bucket " + std::to_string(i) + " of the sharded optimizer");
  }
  started_ = true;
}

void ParamSync::unpack(const BucketLayout& layout, const at::Tensor& values) {
  std::vector<at::Tensor> from, to;
  for (const Slot& slot : layout.slots) {
    if (!present_[slot.param]) continue;
    from.push_back(values.narrow(0, slot.begin, slot.numel));
    to.push_back(flat(grads_->param(slot.param)));
  }
  kernels::multi_tensor_copy(from, to);
}

void ParamSync::check_unwritten() const {
  for (size_t i = 0; i < present_.size(); ++i) {
    TORCH_CHECK(!present_[i] || versions_[i].matches(grads_->param(i)), "DistributedFusedAdam: parameter ", i, ", of shape ",
                grads_->param(i).sizes(),
                ", was written or replaced after a step with overlap_param_sync, whose new values have yet to arrive and would "
                "overwrite it. Call finish_param_sync() before you write or load parameters.");
  }
}

void ParamSync::finish(const std::function<void(const at::Tensor&)>& written) {
  if (!started_) return;
  check_unwritten();
  started_ = false;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (!buckets_[i].in_flight) continue;
    const auto& layout = grads_->buckets()[i].layout;
    unpack(layout, buckets_[i].in_flight->finish());
    buckets_[i].in_flight.reset();
    for (const Slot& slot : layout.slots) {
      if (present_[slot.param]) written(grads_->param(slot.param));
    }
  }
}

at::Tensor gather_on_rank_0(ShardedGrads& sync, size_t index, const at::Tensor& part) {
  if (sync.param(index).numel() == 0) {
    return sync.rank() == 0 ? at::empty_like(sync.param(index), part.options()) : at::Tensor();
  }
  const int ranks = sync.group()->getSize();
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < ranks; ++rank) sizes.push_back(sync.part_of(index, rank).numel);
  const int64_t most = *std::max_element(sizes.begin(), sizes.end());
  TORCH_CHECK(most > 0, "DistributedFusedAdam has a state of parameter ", index, ", of shape ", sync.param(index).sizes(),
              ", which no rank has trained. Do not write into `state()`: load an archive.");
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
