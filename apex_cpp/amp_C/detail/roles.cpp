#include <apex_cpp/amp_C/detail/roles.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "kernels/plan/reuse.h"

namespace apex::amp_C::detail {
namespace {

using kernels::plan::Access;

constexpr std::array<const char*, kernels::plan::kMaxLists> kListNames = {
    "tensor_lists[0]", "tensor_lists[1]", "tensor_lists[2]", "tensor_lists[3]", "tensor_lists[4]"};

std::vector<const char*> names_of(c10::ArrayRef<Role> roles) {
  std::vector<const char*> names;
  std::transform(roles.begin(), roles.end(), std::back_inserter(names), [](const Role& role) { return role.name; });
  return names;
}

}  // namespace

void check_roles(const char* op, int64_t chunk_size, const at::Tensor& noop_flag, const TensorLists& tensor_lists,
                 c10::ArrayRef<Role> roles) {
  check_tensor_lists(op, chunk_size, noop_flag, tensor_lists, roles.size(), names_of(roles));
  std::vector<kernels::plan::TensorList> lists;
  for (size_t i = 0; i < roles.size(); ++i) {
    if (roles[i].use == Use::none) continue;
    const Access access = roles[i].use == Use::write ? Access::write : Access::read;
    lists.push_back({kListNames[i], tensor_lists[i], access, roles[i].takes_double, roles[i].name});
  }
  kernels::plan::checked_groups(op, lists);  // remembered: a kernel over the same lists does not check them again
}

}  // namespace apex::amp_C::detail
