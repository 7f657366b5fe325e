#include "processes.h"

#include <memory>
#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/full.h>

#include "errors.h"

namespace distributed {
namespace {

namespace parallel = apex::parallel;

// The first character of the leader's message.
constexpr char kMade = '+', kFailed = '-';

at::Tensor summed(const parallel::ProcessGroup& group, at::Tensor number) {
  parallel::all_reduce(group, number, "summing a number of every process");
  return number;
}

std::string made_or_failed(const std::function<std::string()>& make) {
  try {
    return kMade + make();
  } catch (const train::UserError& error) {
    return kFailed + std::string(error.what());
  }
}

}  // namespace

train::Team::Forward Processes::join(train::Network& net, const train::Config& config) {
  if (config.optimizer.is_sharded()) return Team::join(net, config);
  auto ddp = std::make_shared<parallel::DistributedDataParallel<train::Network>>(net);
  return [ddp](const at::Tensor& images) { return (*ddp)(images); };
}

void Processes::begin_epoch(uint64_t seed, uint64_t epoch) {
  constexpr uint64_t kMostEpochs = 1 << 20;
  at::manual_seed((seed * kMostEpochs + epoch) * static_cast<uint64_t>(size()) + static_cast<uint64_t>(rank()));
}

void Processes::agree(train::Network& net) {
  for (const auto& buffer : net->named_buffers())
    parallel::broadcast(group_, buffer.value(), 0, "broadcasting buffer " + buffer.key());
}

double Processes::mean(double value) {
  return summed(group_, at::full({1}, value, at::kDouble)).item<double>() / static_cast<double>(size());
}

int64_t Processes::sum(int64_t value) { return summed(group_, at::full({1}, value, at::kLong)).item<int64_t>(); }

std::string Processes::of_leader(const std::function<std::string()>& make) {
  const auto mine = leads() ? made_or_failed(make) : std::string();
  const auto text = parallel::gather_strings(group_, mine, "receiving from rank 0")[0];
  if (text[0] == kFailed) throw train::UserError(text.substr(1));
  return text.substr(1);
}

}  // namespace distributed
