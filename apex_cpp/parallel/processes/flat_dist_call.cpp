#include <apex_cpp/parallel/processes/flat_dist_call.h>

#include <ATen/core/grad_mode.h>
#include <apex_cpp/apex_C/flatten.h>
#include <apex_cpp/parallel/processes/collectives.h>

#include <algorithm>

namespace apex::parallel {
namespace {

using TensorLists = std::vector<std::vector<at::Tensor>>;

TensorLists lists_of_one_type(const std::vector<at::Tensor>& tensors) {
  TensorLists lists;
  for (const at::Tensor& tensor : tensors) {
    const auto is_alike = [&](const auto& list) {
      return list.front().scalar_type() == tensor.scalar_type() && list.front().device() == tensor.device();
    };
    const auto list = std::find_if(lists.begin(), lists.end(), is_alike);
    list == lists.end() ? lists.push_back({tensor}) : list->push_back(tensor);
  }
  return lists;
}

}  // namespace

void flat_dist_call(const std::vector<at::Tensor>& tensors, const FlatCall& call) {
  const at::NoGradGuard no_grad;
  for (const auto& list : lists_of_one_type(tensors)) {
    const at::Tensor flat = apex_C::flatten(list);
    call(flat);
    const auto values = apex_C::unflatten(flat, list);
    for (size_t i = 0; i < list.size(); ++i) list[i].copy_(values[i]);
  }
}

FlatCall all_reduce_mean(const ProcessGroup& given, const std::string& what) {
  return [group = or_default(given), what](const at::Tensor& flat) {
    all_reduce(group, flat, what);
    flat.div_(group->getSize());
  };
}

FlatCall broadcast_from(int root, const ProcessGroup& given, const std::string& what) {
  return
      [group = or_default(given), root, what](const at::Tensor& flat) { broadcast(group, flat.view(at::kByte), root, what); };
}

}  // namespace apex::parallel
