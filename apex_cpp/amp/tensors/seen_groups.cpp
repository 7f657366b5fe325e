#include <apex_cpp/amp/tensors/seen_groups.h>

#include <algorithm>

namespace apex::amp::detail {

SeenGroups::SeenGroups(const ParamGroups& groups) {
  for (const auto& group : groups) {
    auto& seen = groups_.emplace_back();
    for (const at::Tensor& param : group.params()) seen.push_back(param.unsafeGetTensorImpl());
  }
}

bool SeenGroups::still(const ParamGroups& groups) const {
  const auto same_tensor = [](const at::Tensor& param, const at::TensorImpl* seen) {
    return param.unsafeGetTensorImpl() == seen;
  };
  return std::equal(groups.begin(), groups.end(), groups_.begin(), groups_.end(), [&](const auto& group, const auto& seen) {
    const auto& params = group.params();
    return std::equal(params.begin(), params.end(), seen.begin(), seen.end(), same_tensor);
  });
}

}  // namespace apex::amp::detail
