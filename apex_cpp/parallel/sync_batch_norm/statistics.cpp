#include <apex_cpp/parallel/sync_batch_norm/statistics.h>

#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <tuple>
#include <vector>

#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/parallel/sync_batch_norm/rows.h>

namespace apex::parallel::detail {
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
  // Running statistics that nobody reads: with those in float32, statistics of 16-bit input are float32 as well.
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

at::Device message_device(const ProcessGroup& group, const at::Tensor& tensor) {
  return tensor.is_cpu() ? device_for(group) : tensor.device();
}

}  // namespace apex::parallel::detail
