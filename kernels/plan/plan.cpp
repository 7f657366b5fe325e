#include "kernels/plan/plan.h"

#include <algorithm>
#include <numeric>

namespace apex::kernels::plan {
namespace {

using Dtypes = std::array<at::ScalarType, kMaxLists>;

Dtypes dtypes_at(TensorLists lists, size_t index) {
  Dtypes dtypes;
  dtypes.fill(at::kFloat);
  for (size_t i = 0; i < lists.size(); ++i) dtypes[i] = lists[i].tensors[index].scalar_type();
  return dtypes;
}

TensorRow row_at(TensorLists lists, size_t index) {
  TensorRow row{index, lists.front().tensors[index].numel(), {}};
  for (size_t i = 0; i < lists.size(); ++i) {
    const at::Tensor& tensor = lists[i].tensors[index];
    row.data[i] = lists[i].access == Access::write ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
  }
  return row;
}

Group& group_for(std::vector<Group>& groups, c10::Device device, const Dtypes& dtypes) {
  auto found = std::find_if(groups.begin(), groups.end(),
                            [&](const Group& group) { return group.device == device && group.dtypes == dtypes; });
  if (found != groups.end()) return *found;
  return groups.emplace_back(Group{device, dtypes, {}, {}, 0});
}

}  // namespace

std::vector<Chunk> make_chunks(c10::ArrayRef<int64_t> numels, int64_t chunk_size) {
  std::vector<Chunk> chunks;
  for (size_t row = 0; row < numels.size(); ++row) {
    for (int64_t offset = 0; offset < numels[row]; offset += chunk_size) {
      chunks.push_back({static_cast<int64_t>(row), offset, std::min(chunk_size, numels[row] - offset)});
    }
  }
  return chunks;
}

bool Group::has_double() const { return std::find(dtypes.begin(), dtypes.end(), at::kDouble) != dtypes.end(); }

std::vector<Group> make_groups(TensorLists lists) {
  TORCH_INTERNAL_ASSERT(lists.size() <= kMaxLists);
  std::vector<Group> groups;
  const at::TensorList tensors = lists.front().tensors;
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (tensors[index].numel() == 0) continue;
    group_for(groups, tensors[index].device(), dtypes_at(lists, index)).rows.push_back(row_at(lists, index));
  }
  for (Group& group : groups) {
    std::vector<int64_t> numels;
    for (const TensorRow& row : group.rows) numels.push_back(row.numel);
    group.chunks = make_chunks(numels);
    group.numel = std::accumulate(numels.begin(), numels.end(), int64_t{0});
  }
  return groups;
}

}  // namespace apex::kernels::plan
