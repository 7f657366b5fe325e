#pragma once

#include <apex_cpp/parallel/sharded/sharded_grads.h>

#include <ATen/core/Tensor.h>

#include <apex_cpp/amp/tensors/tensor_version.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace apex::parallel::detail {

/// Sends new parameter values from the ranks that updated them to all ranks: one all-gather per bucket that has a parameter
/// with a gradient. Memory: one shard per bucket, and after `start` all buckets being sent.
class ParamSync {
 public:
  explicit ParamSync(std::shared_ptr<ShardedGrads> grads);

  /// The memory for this rank's part of the new values, [numel of the part]. Only for parameters with a gradient.
  at::Tensor place_of(size_t index);
  /// Sends the new values. Collective.
  void start();
  /// Waits for the new values, writes them to the parameters, and calls `written` for each. Errors, before anything is written:
  /// RuntimeError for a parameter that was written or replaced since `start`.
  void finish(const std::function<void(const at::Tensor&)>& written);

 private:
  void check_unwritten() const;
  void unpack(const BucketLayout& layout, const at::Tensor& values);

  struct Sent {
    at::Tensor shard;
    std::optional<AllGather> in_flight;
  };
  std::shared_ptr<ShardedGrads> grads_;
  std::vector<Sent> buckets_;
  std::vector<bool> present_;                         // a copy: gradients are dropped before the values arrive
  std::vector<amp::detail::TensorVersion> versions_;  // of the present parameters at `start`
  bool started_ = false;
};

/// Gathers the ranks' parts of a state of parameter `index` on rank 0's CPU, in the parameter's shape; undefined on other
/// ranks. Every rank holds one tensor of the parameter's size meanwhile. Collective.
at::Tensor gather_on_rank_0(ShardedGrads& sync, size_t index, const at::Tensor& part);

}  // namespace apex::parallel::detail
