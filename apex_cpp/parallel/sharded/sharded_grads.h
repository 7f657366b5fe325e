#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/parallel/sharded/layout.h>

namespace apex::parallel::detail {

struct ShardedGradsOptions {
  ProcessGroup group;
  int64_t bucket_bytes = 0;
  std::optional<at::ScalarType> grad_dtype, param_dtype;  // not set: the parameter's dtype
  bool overlap = true;
  bool average = true;
};

/// A bucket of gradients. `pass` and `sum` are this rank's shard, in float32, of the sums of the current pass and of all ended
/// passes.
struct GradBucket {
  explicit GradBucket(BucketLayout bucket) : layout(std::move(bucket)) {}

  BucketLayout layout;
  size_t arrived = 0;
  std::optional<ReduceScatter> in_flight;
  at::Tensor pass, sum;
  /// In watched passes: whether this rank has sent Inf or NaN in the current one, and in an ended one; int32, one element.
  at::Tensor nonfinite_in_pass, found_nonfinite;
};

/// Takes gradients out of parameters and sums them over ranks; each rank keeps its shard of the sums (ZeRO-2).
///
/// A round sends every bucket once, in the same order on every rank; missing gradients are sent as zeros. A bucket is sent when
/// all its gradients have arrived and all earlier buckets are sent; the others when the pass ends. At most two are in flight;
/// the next one waits for the oldest. A gradient that arrives after its bucket was sent (in a second backward) waits in the
/// parameter for another round at the end of the pass; so does that of a parameter that was unfrozen, which first gets a place.
///
/// Hooks run on the threads of the backward pass, one at a time. Call all other functions between passes. A parameter's index
/// is its position in the order of `add_params`.
class ShardedGrads final : public amp::GradShards, public std::enable_shared_from_this<ShardedGrads> {
 public:
  explicit ShardedGrads(ShardedGradsOptions options);
  ~ShardedGrads() override;
  ShardedGrads(const ShardedGrads&) = delete;
  ShardedGrads& operator=(const ShardedGrads&) = delete;

  /// Collective. Checks that the parameters agree on all ranks, copies rank 0's values, and installs hooks. Errors, before
  /// anything is changed: TypeError for a dtype other than float16, bfloat16 and float32; ValueError for a parameter with gaps
  /// in memory, for one of another sharded optimizer, for one that shares memory with another one, as `set_data` ties them, and
  /// for one that differs between ranks in shape, layout or dtype.
  void add_params(const std::vector<at::Tensor>& params);

  const ProcessGroup& group() const { return options_.group; }
  int rank() const { return options_.group->getRank(); }
  const std::vector<GradBucket>& buckets();
  /// Errors: RuntimeError for a parameter that was not added.
  size_t index_of(const at::Tensor& param) const;
  const at::Tensor& param(size_t index) const { return params_[index].tensor; }

  /// Gives a place to these parameters also if they are frozen now: they have state, because they were trained once. Every rank
  /// calls it with the same parameters.
  void lay_out_once_trained(const std::vector<at::Tensor>& params);

  /// Gives a place to parameters that were unfrozen since the last pass. Every rank calls it at the same point: the next pass
  /// compares the places of all ranks again.
  void lay_out_unfrozen();

  /// The place of a parameter; null for one that was frozen so far. First assigns trained parameters to buckets, if there are
  /// none yet.
  struct Place {
    size_t bucket;
    Slot slot;
  };
  const Place* place_of(size_t index);
  /// The part of a parameter that `rank` keeps.
  Part part_of(size_t index, int rank);

  /// Ends a pass outside of amp's blocks, if its gradients are not summed yet.
  void finish();
  /// Whether any rank has a gradient of this parameter; and this rank's part of the sum.
  bool is_present(size_t index) const { return params_[index].present; }
  at::Tensor grad_part(size_t index);
  /// Errors: RuntimeError, on every rank, naming a parameter that has a gradient on any rank and is not among `params`, those
  /// of the groups: no rank computes its new value.
  void check_all_among(const std::vector<at::Tensor>& params) const;
  /// The factor for the sums: 1 / scale, times the clipping factor.
  double grad_factor() const { return clip_ / scale_; }

  void begin_no_sync() { ++no_sync_; }
  void end_no_sync() { --no_sync_; }
  /// Whether the gradients carry a loss scale that only the end of a block takes out: within a block, and after one with
  /// delay_unscale.
  bool has_scaled_grads() const { return in_block_ || delayed_; }
  /// Makes the next gradient throw this error, because the parameters are not those of the last step yet. Empty: no error.
  void refuse_passes(std::string why) { refusal_ = std::move(why); }

  // amp::GradShards.
  void begin_pass(bool held, bool watched) override {
    held_ = held;
    watched_ = watched;
    in_block_ = true;
  }
  void end_held_pass(bool is_delayed) override {
    held_ = in_block_ = false;
    delayed_ |= is_delayed;
  }
  bool has_open_grads() const override;
  void end_pass(double scale) override;
  void abandon_pass() override;
  void drop() override;
  at::Tensor norm() override;
  bool pass_overflowed() override;
  double clip(double max_norm) override;
  at::Tensor found_inf() override;
  void unscale(const at::Tensor& inv_scale) override;
  Nonfinite first_nonfinite() const override { return nonfinite_; }
  std::vector<int> ranks_with_overflow(bool found_here) override;
  void take_maximum(const at::Tensor& values) override;

 private:
  struct Param {
    at::Tensor tensor;
    std::optional<Place> place;
    at::Tensor layout;     // without memory: sizes and strides when it got its place, in whose order the parts are
    bool arrived = false;  // in this round
    bool in_pass = false;  // this rank, or after each round any rank, has sent a gradient in the current pass
    bool present = false;  // any rank has sent one in a pass that has ended, and whose sums are kept
  };
  struct Hook;

  void check_params(const std::vector<at::Tensor>& params) const;
  bool is_new(const Param& param) const { return !param.place && param.tensor.requires_grad(); }
  void lay_out_new_params();
  void lay_out_params(const std::vector<size_t>& indices);
  void agree_on_buckets();
  void check_same_trained();
  std::string named(size_t index) const;

  void take(size_t index);
  void check_takes(size_t index) const;
  void send_full_buckets();
  void send(GradBucket& bucket);
  at::Tensor packed(const GradBucket& bucket);
  void receive(GradBucket& bucket);
  void finish_round();
  void forget_arrivals();
  bool agree_on_round(double scale);
  void keep_pass(double scale);
  void drop_pass();
  void check_same_scale(float lowest, float highest, double mine);
  bool is_pass_nonfinite() const;
  std::vector<at::Tensor> sums() const;
  at::Tensor count_nonfinite();
  Nonfinite find_nonfinite();
  void forget_norm();
  std::string name_of(const GradBucket& bucket) const;

  ShardedGradsOptions options_;
  std::vector<Param> params_;
  std::unordered_map<const at::TensorImpl*, size_t> index_;
  std::vector<GradBucket> buckets_;
  std::mutex mutex_;
  size_t sent_ = 0;      // number of buckets sent in this round
  bool agreed_ = false;  // the ranks have the same buckets
  int no_sync_ = 0;
  bool held_ = false, watched_ = false, in_block_ = false, delayed_ = false;
  bool ended_ = false;  // a pass has ended since the sums were dropped
  double scale_ = 1.0, clip_ = 1.0;
  std::optional<float> norm_;  // of the sums, unscaled, before clipping
  Nonfinite nonfinite_;        // found together with norm_
  // Whether the sums of earlier passes were not finite; and whether the last pass was not, computed only in that case.
  bool older_nonfinite_ = false, pass_nonfinite_ = false;
  std::string refusal_;
};

}  // namespace apex::parallel::detail
