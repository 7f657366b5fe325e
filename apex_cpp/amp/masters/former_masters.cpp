#include <apex_cpp/amp/masters/former_masters.h>

#include <utility>

namespace apex::amp::detail {

void FormerMasters::add(const at::Tensor& param, const at::Tensor& master, GradMark mark) {
  mark.forget_values();
  const Record record{Weak(param.getIntrusivePtr()), std::move(mark)};
  records_.set(param, record);
  records_.set(master, record);
}

std::optional<KnownParam> FormerMasters::find(const at::Tensor& tensor) const {
  const Record* found = records_.find(tensor);
  auto alive = found ? found->param.lock() : nullptr;
  if (!alive) return std::nullopt;
  return KnownParam{at::Tensor(std::move(alive)), found->mark};
}

}  // namespace apex::amp::detail
