#include <apex_cpp/amp/masters/former_masters.h>

#include <utility>

namespace apex::amp::detail {

void FormerMasters::add(const KnownMaster& known) {
  Record record{Weak(known.param.getIntrusivePtr()), Weak(known.master.getIntrusivePtr()), known.mark};
  record.mark.forget_values();
  records_.set(known.param, record);
  records_.set(known.master, std::move(record));
}

std::optional<KnownMaster> FormerMasters::find(const at::Tensor& tensor) const {
  const Record* found = records_.find(tensor);
  auto alive = found ? found->param.lock() : nullptr;
  if (!alive) return std::nullopt;
  return KnownMaster{at::Tensor(std::move(alive)), at::Tensor(found->master.lock()), found->mark};
}

}  // namespace apex::amp::detail
