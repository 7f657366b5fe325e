#include <apex_cpp/amp/masters/stray_grads.h>

#include <algorithm>
#include <utility>

namespace apex::amp::detail {

void StrayGrads::begin_block(const Params& params) {
  before_.clear();
  for (const at::Tensor& param : params) before_.push_back({param, TensorTrace(param.grad())});
}

void StrayGrads::end_block(const std::function<bool(const at::Tensor&)>& is_taken) {
  const auto gone = [](const Gradient& each) { return !each.still(); };
  strays_.erase(std::remove_if(strays_.begin(), strays_.end(), gone), strays_.end());
  for (const Gradient& before : std::exchange(before_, {})) {
    const at::Tensor& grad = before.param.grad();
    if (grad.defined() && !before.still() && !is_taken(before.param)) strays_.push_back({before.param, TensorTrace(grad)});
  }
}

void StrayGrads::forget(const Params& gone) {
  std::unordered_set<const at::TensorImpl*> going;
  for (const at::Tensor& param : gone) going.insert(param.unsafeGetTensorImpl());
  const auto goes = [&](const Gradient& each) { return going.count(each.param.unsafeGetTensorImpl()) > 0; };
  strays_.erase(std::remove_if(strays_.begin(), strays_.end(), goes), strays_.end());
}

at::Tensor StrayGrads::first(const std::function<bool(const at::Tensor&)>& counts) const {
  for (const Gradient& each : strays_) {
    if (each.still() && (!counts || counts(each.param))) return each.param;
  }
  return {};
}

std::unordered_set<const at::TensorImpl*> StrayGrads::params() const {
  std::unordered_set<const at::TensorImpl*> params;
  for (const Gradient& each : strays_) {
    if (each.still()) params.insert(each.param.unsafeGetTensorImpl());
  }
  return params;
}

}  // namespace apex::amp::detail
