#include <apex_cpp/amp/masters/former_masters.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace apex::amp::detail {

void FormerMasters::add(const KnownMaster& known) {
  if (records_.size() >= next_sweep_) drop_expired();
  Record record{Weak(known.param.getIntrusivePtr()), Weak(known.master.getIntrusivePtr()), known.mark};
  record.mark.forget_values();
  records_.insert_or_assign(known.param.unsafeGetTensorImpl(), record);
  records_.insert_or_assign(known.master.unsafeGetTensorImpl(), std::move(record));
}

std::optional<KnownMaster> FormerMasters::find(const at::Tensor& tensor) const {
  const auto found = records_.find(tensor.unsafeGetTensorImpl());
  if (found == records_.end()) return std::nullopt;
  const auto& [param, master, mark] = found->second;
  auto alive = param.lock();
  if (!alive) return std::nullopt;
  return KnownMaster{at::Tensor(std::move(alive)), at::Tensor(master.lock()), mark};
}

void FormerMasters::drop_expired() {
  for (auto it = records_.begin(); it != records_.end();) {
    it = it->second.param.expired() ? records_.erase(it) : std::next(it);
  }
  next_sweep_ = std::max<size_t>(256, 2 * records_.size());
}

}  // namespace apex::amp::detail
