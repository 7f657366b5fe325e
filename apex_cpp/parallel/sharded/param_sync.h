#pragma once

#include <apex_cpp/parallel/sharded/sharded_grads.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace apex::parallel::detail {

/// New values of parameters on their way from the ranks that have updated them to all: one all-gather for each bucket with a
/// parameter that has a gradient. Memory: a shard of each bucket, and from `start` on all of the buckets that are under way.
class ParamSync {
 public:
  explicit ParamSync(std::shared_ptr<ShardedGrads> grads);

  /// Where this rank's part of a parameter's new values is to be written, [numel of the part]. Only for present ones.
  at::Tensor place_of(size_t index);
  /// Sends what was written there. Collective.
  void start();
  bool under_way() const { return started_; }
  /// Writes the parameters, and calls `written` for each.
  void finish(const std::function<void(const at::Tensor&)>& written);

 private:
  void unpack(const BucketLayout& layout, const at::Tensor& values);

  struct Sent {
    at::Tensor shard;
    std::optional<AllGather> in_flight;
  };
  std::shared_ptr<ShardedGrads> grads_;
  std::vector<Sent> buckets_;
  std::vector<bool> present_;  // gradients are dropped before the values have come
  bool started_ = false;
};

/// The ranks' parts of what is kept for the parameter `index`, joined: of the parameter's shape, on rank 0's CPU; undefined on
/// the other ranks, which hold one tensor of the parameter's size meanwhile. Collective.
at::Tensor gather_on_rank_0(ShardedGrads& sync, size_t index, const at::Tensor& part);

}  // namespace apex::parallel::detail
