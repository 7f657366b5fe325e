#include <apex_cpp/parallel/sync_batch_norm/batch_statistics.h>

#include <apex_cpp/parallel/processes/collectives.h>

#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

namespace apex::parallel::detail {
namespace {

// So few rows keep the error of a sum below float32's last place of the result.
constexpr int64_t kFewRows = 128;
// LibTorch updates the sums of all channels with every row: the sums of this many channels stay in the first-level cache.
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

namespace {

// Statistics of parts of a batch, [parts, C], and their counts, [parts, 1], all in float64.
struct PartStatistics {
  at::Tensor means, variances, counts;
};

BatchStatistics merged(const PartStatistics& parts) {
  BatchStatistics all;
  all.count = parts.counts.sum();
  const auto shares = parts.counts / all.count;
  all.mean = (parts.means * shares).sum(0);
  all.variance = ((parts.variances + (parts.means - all.mean).square()) * shares).sum(0);
  return all;
}

PartStatistics statistics_of_part(const at::Tensor& part, int64_t channels) {
  // Never read. Running statistics in float32 make LibTorch return the statistics of 16-bit input in float32.
  const auto unread = at::zeros({2, part.size(1)}, part.options().dtype(arithmetic_type(part.scalar_type())));
  const auto [means, variances] = at::batch_norm_update_stats(part, unread[0], unread[1], /*momentum=*/0);
  const auto by_group = [&](const at::Tensor& values) { return values.to(at::kDouble).view({-1, channels}); };
  const auto groups = part.size(1) / channels;
  const auto wide = part.options().dtype(at::kDouble);
  return {by_group(means), by_group(variances), at::full({groups, 1}, static_cast<double>(values_in_group(part)), wide)};
}

void check_count(const BatchStatistics& batch, int ranks) {
  if (!batch.count.is_cpu()) return;
  const auto count = batch.count.item<double>();
  TORCH_CHECK_VALUE(
      count > 1, "SyncBatchNorm: the batches of the ", ranks, " ranks have ", count,
      " values per channel together, and a variance needs more than one. Give them larger batches, or call eval() "
      "first.");
}

}  // namespace

BatchStatistics statistics_of(const at::Tensor& input) {
  const auto channels = input.size(1);
  const auto wide = input.options().dtype(at::kDouble);
  if (input.numel() == 0) return {at::zeros({channels}, wide), at::zeros({channels}, wide), at::zeros({}, wide)};
  std::vector<at::Tensor> means, variances, counts;
  for (const at::Tensor& part : parts_of(input, input)) {
    const auto statistics = statistics_of_part(part, channels);
    means.push_back(statistics.means);
    variances.push_back(statistics.variances);
    counts.push_back(statistics.counts);
  }
  return merged({at::cat(means), at::cat(variances), at::cat(counts)});
}

BatchStatistics joined(const BatchStatistics& mine, const ProcessGroup& group) {
  const auto message = at::cat({mine.mean, mine.variance, mine.count.reshape({1})});
  const auto messages = all_gather(group, message.to(message_device(group, message)), "gathering SyncBatchNorm's statistics");
  const auto ranks = at::stack(messages).to(message.device());  // [ranks, 2 C + 1]
  const auto channels = mine.mean.numel();
  const auto all =
      merged({ranks.narrow(1, 0, channels), ranks.narrow(1, channels, channels), ranks.narrow(1, 2 * channels, 1)});
  check_count(all, group->getSize());
  return all;
}

void follow(const BatchStatistics& batch, double momentum, at::Tensor running_mean, at::Tensor running_var) {
  const auto move = [&](at::Tensor& running, const at::Tensor& to) {
    running.copy_(running.to(at::kDouble).mul_(1 - momentum).add_(to, momentum));
  };
  move(running_mean, batch.mean);
  move(running_var, batch.variance * (batch.count / (batch.count - 1).clamp_min(1)));
}

namespace {

// The number of values that one operator writes and the next reads from the cache.
constexpr int64_t kValuesInCache = 1 << 18;

// LibTorch's batch norm in evaluation mode: one vectorized pass. Adds `shift`, which may be undefined.
void write_centred(const at::Tensor& input, const Centring& centring, const at::Tensor& shift, at::Tensor& output) {
  const auto variance = at::ones_like(centring.mean);
  auto unused_mean = at::empty({0}, centring.mean.options()), unused_inv_std = at::empty_like(unused_mean);
  at::native_batch_norm_out(output, unused_mean, unused_inv_std, input, centring.scale, shift, centring.mean, variance,
                            /*training=*/false, /*momentum=*/0, /*eps=*/0);
}

// `values` as [1, C, 1, ...], for a batch of `dims` dimensions.
at::Tensor along_channels(const at::Tensor& values, int64_t dims) {
  std::vector<int64_t> shape(static_cast<size_t>(dims), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

// For 16-bit tensors `b` is centred separately: a 16-bit product would also round the scale, which multiplies the mean.
void write_sum_of_centred(const at::Tensor& a, const Centring& of_a, const at::Tensor& b, const Centring& of_b,
                          at::Tensor sum) {
  if (sum.scalar_type() == of_b.scale.scalar_type()) {
    write_centred(a, of_a, of_b.mean.mul(of_b.scale).neg(), sum);
    sum.addcmul_(b, along_channels(of_b.scale, b.dim()));
  } else {
    write_centred(a, of_a, {}, sum);
    auto other = at::empty_like(sum);
    write_centred(b, of_b, {}, other);
    sum.add_(other);
  }
}

// Adds the part's sums; sums.grad_deviation is not divided by inv_std yet.
void add_sums_of_part(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inv_std,
                      GradSums& sums) {
  const auto channels = mean.numel(), groups = input.size(1) / channels;
  const auto means = mean.repeat(groups);
  const auto [none, grad_weight, grad_bias] = at::native_batch_norm_backward(
      grad, input, at::ones_like(means), /*running_mean=*/{}, /*running_var=*/{}, means, inv_std.repeat(groups),
      /*train=*/true, /*eps=*/0, std::array<bool, 3>{false, true, true});
  const auto by_group = [&](const at::Tensor& values) { return values.to(at::kDouble).view({-1, channels}).sum(0); };
  sums.grad.add_(by_group(grad_bias));
  sums.grad_deviation.add_(by_group(grad_weight));
}

}  // namespace

at::Tensor in_kernel_layout(const at::Tensor& input) {
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    const int64_t dim = format == at::MemoryFormat::ChannelsLast ? 4 : 5;
    if (input.dim() == dim && input.is_contiguous(format)) return input;
  }
  return input.contiguous();
}

at::Tensor sum_of_centred(const at::Tensor& a, const Centring& of_a, const at::Tensor& b, const Centring& of_b) {
  auto sum = at::empty_like(a);
  const int64_t samples = std::max<int64_t>(1, kValuesInCache * a.size(0) / a.numel());
  for (int64_t start = 0; start < a.size(0); start += samples) {
    const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, start, std::min(samples, whole.size(0) - start)); };
    write_sum_of_centred(part(a), of_a, part(b), of_b, part(sum));
  }
  return sum;
}

GradSums sums_of_grad(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inv_std) {
  GradSums sums{at::zeros_like(mean, at::kDouble), at::zeros_like(mean, at::kDouble)};
  if (input.numel() == 0) return sums;
  const auto grads = parts_of(grad, input), inputs = parts_of(input, input);
  for (size_t i = 0; i < inputs.size(); ++i) add_sums_of_part(grads[i], inputs[i], mean, inv_std, sums);
  sums.grad_deviation.div_(inv_std);
  return sums;
}

}  // namespace apex::parallel::detail
