// What is asked of the sums that ShardedGrads has made.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <apex_cpp/amp/masters/clipping.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/sharded/sharded_grads.h>

#include <cmath>

#include "kernels/multi_tensor.h"

namespace apex::parallel::detail {

std::vector<at::Tensor> ShardedGrads::sums() const {
  std::vector<at::Tensor> sums;
  for (const GradBucket& bucket : buckets_) {
    if (bucket.sum.defined()) sums.push_back(bucket.sum);
  }
  return sums;
}

at::Tensor ShardedGrads::grad_part(size_t index) {
  const Part part = part_of(index, rank());
  return buckets_[params_[index].place->bucket].sum.narrow(0, part.in_shard, part.numel);
}

// Ranks' squares are added in rank order.
at::Tensor ShardedGrads::norm() {
  finish();
  if (!norm_) {
    const at::NoGradGuard no_grad;
    const auto mine = sums();
    double norm = 0;
    if (!mine.empty())
      norm = amp::detail::scaled_norm(mine, 1.0 / scale_, amp::detail::unread_flag(mine.front())).item<float>();
    const at::Tensor square = at::full({1}, norm * norm, at::kDouble).to(device_for(options_.group));
    double total = 0;
    for (const auto& each : all_gather(options_.group, square, "adding up the norm of the gradients"))
      total += each.item<double>();
    norm_ = static_cast<float>(std::sqrt(total));
    if (watched_ && !std::isfinite(*norm_)) nonfinite_ = find_nonfinite();
  }
  return at::full({1}, *norm_ * clip_, at::kFloat);
}

void ShardedGrads::forget_norm() {
  norm_.reset();
  nonfinite_ = {};
}

double ShardedGrads::clip(double max_norm) {
  const double before = norm().item<float>();
  clip_ *= amp::detail::clip_coefficient(before, max_norm);
  return before;
}

at::Tensor ShardedGrads::found_inf() {
  finish();
  const at::NoGradGuard no_grad;
  const auto mine = sums();
  const at::Tensor flag = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(device_for(options_.group)));
  if (!mine.empty()) kernels::multi_tensor_check_finite(flag, mine);
  all_reduce(options_.group, flag, "finding whether a gradient is not finite", c10d::ReduceOp::MAX);
  return flag.to(at::kFloat).reshape({});
}

void ShardedGrads::unscale(const at::Tensor& inv_scale) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& sum : sums()) sum.mul_(inv_scale.to(sum.device()));
  forget_norm();
}

std::vector<int> ShardedGrads::ranks_with_overflow(bool found_here) {
  return ranks_where(options_.group, found_here, "finding the ranks that overflowed");
}

ShardedGrads::Nonfinite ShardedGrads::find_nonfinite() {
  const at::NoGradGuard no_grad;
  const auto none = static_cast<int64_t>(params_.size());
  at::Tensor mine = at::tensor({none, int64_t{0}, int64_t{0}}, at::kLong);
  for (int64_t i = 0; i < none && mine[0].item<int64_t>() == none; ++i) {
    if (!params_[i].place || !ended_) continue;
    const at::Tensor part = grad_part(i);
    const int64_t infs = part.isinf().sum().item<int64_t>(), nans = part.isnan().sum().item<int64_t>();
    if (infs + nans > 0) mine = at::tensor({i, infs, nans}, at::kLong);
  }
  Nonfinite found;
  int64_t first = none;
  for (const auto& each :
       all_gather(options_.group, mine.to(device_for(options_.group)), "finding the first gradient that overflowed")) {
    const at::Tensor values = each.cpu();
    const int64_t index = values[0].item<int64_t>();
    if (index > first || index == none) continue;
    if (index < first) found = {params_[index].tensor, 0, 0};
    first = index;
    found.inf_count += values[1].item<int64_t>();
    found.nan_count += values[2].item<int64_t>();
  }
  if (first == none) return found;
  const at::Tensor& sent = buckets_[params_[first].place->bucket].found_nonfinite;
  found.ranks = ranks_with_overflow(sent.defined() && sent.item<int32_t>() != 0);
  return found;
}

}  // namespace apex::parallel::detail
