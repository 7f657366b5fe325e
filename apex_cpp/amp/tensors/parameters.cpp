#include <apex_cpp/amp/tensors/parameters.h>

#include <apex_cpp/amp/tensors/convert_network.h>

#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <sstream>
#include <unordered_map>

namespace apex::amp::detail {
namespace {

struct NewestNames {
  std::mutex mutex;
  std::shared_ptr<const ParameterNames> names;
};

NewestNames& newest_names() {
  static NewestNames instance;
  return instance;
}

}  // namespace

std::shared_ptr<const ParameterNames> newest_parameter_names() {
  const std::lock_guard<std::mutex> lock(newest_names().mutex);
  return newest_names().names;
}

void set_newest_parameter_names(std::shared_ptr<const ParameterNames> names) {
  const std::lock_guard<std::mutex> lock(newest_names().mutex);
  newest_names().names = std::move(names);
}

std::vector<std::pair<std::string, at::Tensor>> tensors_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

at::Tensor widened(const at::Tensor& tensor) {
  return is_low_precision(tensor.scalar_type()) ? tensor.detach().to(at::kFloat) : tensor;
}

bool has_shared_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.storage().use_count() > 1;
}

bool are_tied(const at::Tensor& a, const at::Tensor& b) {
  return has_shared_memory(a) && has_shared_memory(b) && at::get_overlap_status(a, b) == at::MemOverlapStatus::Full;
}

void remove_internal_overlap(const at::Tensor& tensor) {
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  const c10::InferenceMode off(false);  // an inference tensor could not be written outside inference mode
  tensor.set_data(tensor.detach().clone(at::MemoryFormat::Contiguous));
}

bool FirstSeen::operator()(const at::Tensor& tensor) { return seen_.insert(tensor.unsafeGetTensorImpl()).second; }

std::vector<at::Tensor> unique_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> once;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(once), FirstSeen());
  return once;
}

std::vector<at::Tensor> params_of(const ParamGroups& groups) {
  std::vector<at::Tensor> params;
  for (const auto& group : groups) params.insert(params.end(), group.params().begin(), group.params().end());
  return unique_tensors(params);
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
                        ", and a step would update it twice. Leave it out of one of them.");
    }
  }
}

void list_params_once(ParamGroups& groups, const NameOfParam& name_of) {
  check_one_group_each(groups, name_of);
  for (auto& group : groups) {
    auto once = unique_tensors(group.params());
    if (once.size() != group.params().size()) group.params() = std::move(once);
  }
}

void UniqueParamGroups::update(ParamGroups& groups, const NameOfParam& name_of) {
  if (!is_due(groups)) return;
  list_params_once(groups, name_of);
  seen_ = ParamGroupsSnapshot(groups);
}

ParamGroupsSnapshot::ParamGroupsSnapshot(const ParamGroups& groups) {
  for (const auto& group : groups) {
    auto& seen = groups_.emplace_back();
    for (const at::Tensor& param : group.params()) seen.push_back(param.unsafeGetTensorImpl());
  }
}

bool ParamGroupsSnapshot::matches(const ParamGroups& groups) const {
  const auto same_tensor = [](const at::Tensor& param, const at::TensorImpl* seen) {
    return param.unsafeGetTensorImpl() == seen;
  };
  return std::equal(groups.begin(), groups.end(), groups_.begin(), groups_.end(), [&](const auto& group, const auto& seen) {
    const auto& params = group.params();
    return std::equal(params.begin(), params.end(), seen.begin(), seen.end(), same_tensor);
  });
}

}  // namespace apex::amp::detail
