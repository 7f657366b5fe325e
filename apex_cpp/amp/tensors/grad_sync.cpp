#include <apex_cpp/amp/tensors/grad_sync.h>

#include <apex_cpp/amp/tensors/weak_tensor_map.h>

#include <mutex>

namespace apex::amp::detail {
namespace {

struct SyncOfParam {
  const GradSync* address;
  std::weak_ptr<GradSync> sync;
};

struct SyncedParams {
  std::mutex mutex;
  WeakTensorMap<SyncOfParam> syncs;
  std::atomic<size_t> count{0};
};

SyncedParams& synced_params() {
  static SyncedParams instance;
  return instance;
}

std::atomic<int> syncs_behind{0};

}  // namespace

bool GradSync::any_is_behind() { return syncs_behind > 0; }

void GradSync::set_behind(bool behind) {
  if (behind_.exchange(behind) != behind) syncs_behind += behind ? 1 : -1;
}

void set_grad_sync(const std::vector<at::Tensor>& params, const std::shared_ptr<GradSync>& sync) {
  auto& synced = synced_params();
  const std::lock_guard<std::mutex> lock(synced.mutex);
  for (const at::Tensor& param : params) synced.syncs.set(param, SyncOfParam{sync.get(), sync});
  synced.count = synced.syncs.size();
}

void drop_grad_sync(const std::vector<at::Tensor>& params, const GradSync& sync) {
  auto& synced = synced_params();
  const std::lock_guard<std::mutex> lock(synced.mutex);
  for (const at::Tensor& param : params) {
    const SyncOfParam* found = synced.syncs.find(param);
    if (found && found->address == &sync) synced.syncs.erase(param);
  }
  synced.count = synced.syncs.size();
}

std::shared_ptr<GradSync> grad_sync_of(const at::Tensor& param) {
  auto& synced = synced_params();
  if (synced.count == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(synced.mutex);
  const SyncOfParam* found = synced.syncs.find(param);
  return found ? found->sync.lock() : nullptr;
}

bool is_behind(const at::Tensor& param) {
  if (!GradSync::any_is_behind()) return false;
  const auto sync = grad_sync_of(param);
  return sync && sync->is_behind();
}

bool has_unreduced_grad(const at::Tensor& param) { return param.grad().defined() && is_behind(param); }

}  // namespace apex::amp::detail
