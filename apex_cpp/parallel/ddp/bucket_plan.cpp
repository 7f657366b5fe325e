#include <apex_cpp/parallel/ddp/bucket_plan.h>

#include <ATen/Functions.h>
#include <apex_cpp/parallel/processes/collectives.h>

#include <algorithm>
#include <utility>

namespace apex::parallel::detail {
namespace {

/// Fills buckets one parameter at a time; each bucket has one dtype and device.
class OpenBuckets {
 public:
  explicit OpenBuckets(const std::vector<NamedTensor>& params) : params_(params) {}

  struct Bucket {
    std::vector<size_t> indices;
    int64_t numel = 0;
  };

  Bucket& add(size_t index) {
    Bucket& bucket = open_for(params_[index].tensor);
    bucket.indices.push_back(index);
    bucket.numel += params_[index].tensor.numel();
    return bucket;
  }
  void close(Bucket& bucket) { closed_.push_back(std::exchange(bucket, {}).indices); }
  BucketPlan close_all() {
    for (auto& bucket : open_) {
      if (!bucket.second.indices.empty()) close(bucket.second);
    }
    return closed_;
  }

 private:
  Bucket& open_for(const at::Tensor& param) {
    const auto is_alike = [&](const auto& bucket) {
      return bucket.first.scalar_type() == param.scalar_type() && bucket.first.device() == param.device();
    };
    const auto found = std::find_if(open_.begin(), open_.end(), is_alike);
    return (found == open_.end() ? open_.emplace_back(param, Bucket{}) : *found).second;
  }

  const std::vector<NamedTensor>& params_;
  std::vector<std::pair<at::Tensor, Bucket>> open_;
  BucketPlan closed_;
};

int64_t enough_elements(const at::Tensor& param, const DistributedDataParallelOptions& options) {
  const bool splits = param.is_cpu() && !options.retain_allreduce_buffers();
  return splits ? std::min(options.message_size(), kMostOnCpu) : options.message_size();
}

}  // namespace

BucketPlan plan_by_arrival(const std::vector<NamedTensor>& params, const std::vector<size_t>& arrival,
                           const DistributedDataParallelOptions& options) {
  const auto& triggers = options.allreduce_trigger_params();
  const auto is_trigger = [&](const at::Tensor& param) {
    return std::any_of(triggers.begin(), triggers.end(), [&](const at::Tensor& trigger) { return trigger.is_same(param); });
  };
  OpenBuckets buckets(params);
  for (const size_t index : arrival) {
    auto& bucket = buckets.add(index);
    const auto& param = params[index].tensor;
    const bool full = triggers.empty() ? bucket.numel >= enough_elements(param, options) : is_trigger(param);
    if (full) buckets.close(bucket);
  }
  return buckets.close_all();
}

BucketPlan plan_by_type(const std::vector<NamedTensor>& params, const std::vector<size_t>& indices) {
  OpenBuckets buckets(params);
  for (const size_t index : indices) buckets.add(index);
  return buckets.close_all();
}

// Sends (bucket, parameter) pairs, so that the message has the same size on ranks with different buckets.
BucketPlan agreed_plan(const ProcessGroup& group, const BucketPlan& mine) {
  std::vector<int64_t> pairs;
  for (size_t bucket = 0; bucket < mine.size(); ++bucket) {
    for (const size_t index : mine[bucket]) {
      pairs.push_back(static_cast<int64_t>(bucket));
      pairs.push_back(static_cast<int64_t>(index));
    }
  }
  const at::Tensor sent = at::tensor(pairs, at::kLong).to(device_for(group));
  broadcast(group, sent, /*root=*/0, "agreeing on the buckets of DistributedDataParallel");
  const at::Tensor received = sent.cpu();
  BucketPlan plan;
  for (int64_t i = 0; i < received.numel(); i += 2) {
    const auto* pair = received.const_data_ptr<int64_t>() + i;
    plan.resize(static_cast<size_t>(pair[0]) + 1);
    plan[static_cast<size_t>(pair[0])].push_back(static_cast<size_t>(pair[1]));
  }
  return plan;
}

}  // namespace apex::parallel::detail
