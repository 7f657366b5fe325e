#include <apex_cpp/amp/tensors/listed_once.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <unordered_map>

namespace apex::amp::detail {

bool FirstTimes::operator()(const at::Tensor& tensor) { return met_.insert(tensor.unsafeGetTensorImpl()).second; }

std::vector<at::Tensor> listed_once(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> once;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(once), FirstTimes());
  return once;
}

std::vector<at::Tensor> params_of(const ParamGroups& groups) {
  std::vector<at::Tensor> params;
  for (const auto& group : groups) params.insert(params.end(), group.params().begin(), group.params().end());
  return listed_once(params);
}

std::string shape_of(const at::Tensor& param) {
  std::ostringstream text;
  text << "of shape " << param.sizes();
  return text.str();
}

void check_one_group_each(const ParamGroups& groups, const NameOfParam& name_of) {
  std::unordered_map<const at::TensorImpl*, size_t> group_of;
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& param : groups[group].params()) {
      const size_t first = group_of.try_emplace(param.unsafeGetTensorImpl(), group).first->second;
      TORCH_CHECK_VALUE(first == group, "Some parameters appear in more than one parameter group: the parameter ",
                        name_of(param), " is in groups ", first, " and ", group,
                        ", which would both step it. Leave it out of one of them.");
    }
  }
}

void list_params_once(ParamGroups& groups, const NameOfParam& name_of) {
  check_one_group_each(groups, name_of);
  for (auto& group : groups) {
    auto once = listed_once(group.params());
    if (once.size() != group.params().size()) group.params() = std::move(once);
  }
}

void ListedOnce::see_to(ParamGroups& groups, const NameOfParam& name_of) {
  if (!is_due(groups)) return;
  list_params_once(groups, name_of);
  seen_ = SeenGroups(groups);
}

}  // namespace apex::amp::detail
