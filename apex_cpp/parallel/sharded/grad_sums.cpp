// Queries on the sums of ShardedGrads.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>

#include <apex_cpp/amp/masters/unscale_path.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/sharded/sharded_grads.h>

#include <cmath>

#include "kernels/multi_tensor.h"
#include "kernels/statistics/statistics.h"

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

// Adds the ranks' sums of squares in rank order.
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
    for (const auto& each : all_gather(options_.group, square, "summing the norm of the gradients"))
      total += each.item<double>();
    norm_ = static_cast<float>(std::sqrt(total));
    if (watched_ && !std::isfinite(*norm_)) nonfinite_ = find_nonfinite();
  }
  return at::full({1}, *norm_ * clip_, at::kFloat);
}

bool ShardedGrads::pass_overflowed() {
  if (std::isfinite(norm().item<float>())) return false;
  return !older_nonfinite_ || pass_nonfinite_;
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

void ShardedGrads::take_maximum(const at::Tensor& values) {
  all_reduce_copy(options_.group, values, "taking the maximum over the ranks", c10d::ReduceOp::MAX);
}

// One row per parameter: the numbers of Inf and NaN in this rank's part of its sum.
at::Tensor ShardedGrads::count_nonfinite() {
  std::vector<at::Tensor> parts;
  std::vector<size_t> indices;
  for (size_t i = 0; i < params_.size(); ++i) {
    const auto& place = params_[i].place;
    if (!place || !buckets_[place->bucket].sum.defined()) continue;  // without a sum: unfrozen in this pass, and not used yet
    parts.push_back(grad_part(i));
    indices.push_back(i);
  }
  const auto found = kernels::tensor_statistics(parts);
  at::Tensor counts = at::zeros({static_cast<int64_t>(params_.size()), 2}, at::kLong);
  auto* const rows = counts.mutable_data_ptr<int64_t>();
  for (size_t k = 0; k < indices.size(); ++k) {
    rows[2 * indices[k]] = found[k].inf;
    rows[2 * indices[k] + 1] = found[k].nan;
  }
  return counts;
}

ShardedGrads::Nonfinite ShardedGrads::find_nonfinite() {
  const at::NoGradGuard no_grad;
  at::Tensor counts = at::zeros({static_cast<int64_t>(params_.size()), 2}, at::kLong);
  for (const auto& each : all_gather(options_.group, count_nonfinite().to(device_for(options_.group)),
                                     "finding the first gradient that overflowed")) {
    counts += each.cpu();
  }
  const at::Tensor at_fault = counts.sum(1).nonzero().flatten();
  Nonfinite found;
  if (at_fault.numel() == 0) return found;
  const auto first = at_fault[0].item<int64_t>();
  found.param = params_[first].tensor;
  found.inf_count = counts[first][0].item<int64_t>();
  found.nan_count = counts[first][1].item<int64_t>();
  found.grads = at_fault.numel();
  const at::Tensor& sent = buckets_[params_[first].place->bucket].found_nonfinite;
  found.ranks = ranks_with_overflow(sent.defined() && sent.item<int32_t>() != 0);
  return found;
}

}  // namespace apex::parallel::detail
