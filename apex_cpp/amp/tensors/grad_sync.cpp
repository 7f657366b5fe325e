#include <apex_cpp/amp/tensors/grad_sync.h>

#include <mutex>
#include <unordered_map>

namespace apex::amp::detail {
namespace {

// A weak reference to a parameter keeps its address from being taken by another tensor.
struct SyncedParam {
  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> param;
  const GradSync* address;
  std::weak_ptr<GradSync> sync;
};

struct SyncedParams {
  std::mutex mutex;
  std::unordered_map<const at::TensorImpl*, SyncedParam> entries;
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
  for (const at::Tensor& param : params) {
    const auto weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(param.getIntrusivePtr());
    synced.entries.insert_or_assign(param.unsafeGetTensorImpl(), SyncedParam{weak, sync.get(), sync});
  }
  synced.count = synced.entries.size();
}

void drop_grad_sync(const std::vector<at::Tensor>& params, const GradSync& sync) {
  auto& synced = synced_params();
  const std::lock_guard<std::mutex> lock(synced.mutex);
  for (const at::Tensor& param : params) {
    const auto found = synced.entries.find(param.unsafeGetTensorImpl());
    if (found != synced.entries.end() && found->second.address == &sync) synced.entries.erase(found);
  }
  synced.count = synced.entries.size();
}

std::shared_ptr<GradSync> grad_sync_of(const at::Tensor& param) {
  auto& synced = synced_params();
  if (synced.count == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(synced.mutex);
  const auto found = synced.entries.find(param.unsafeGetTensorImpl());
  return found == synced.entries.end() ? nullptr : found->second.sync.lock();
}

bool has_unreduced_grad(const at::Tensor& param) {
  if (!GradSync::any_is_behind() || !param.grad().defined()) return false;
  const auto sync = grad_sync_of(param);
  return sync && sync->is_behind();
}

}  // namespace apex::amp::detail
