#include "kernels/plan/plan.h"

#include "kernels/memory_order.h"
#include "kernels/rules/quantized.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace apex::kernels::plan {
namespace {

bool takes(const TensorList& list, at::ScalarType dtype) {
  if (is_remainder(dtype)) return list.takes_remainders;
  if (is_code(dtype)) return list.takes_codes;
  return dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat || (dtype == at::kDouble && list.takes_double);
}

void check_tensor(const char* op, const TensorList& list, size_t index) {
  const at::Tensor& tensor = list.tensors[index];
  TORCH_CHECK(tensor.defined(), op, ": ", name_of(list, index), " is undefined. Leave out parameters without a gradient.");
  TORCH_CHECK(tensor.layout() == at::kStrided, op, ": ", name_of(list, index), " has layout ", tensor.layout(),
              ". Only dense tensors are supported: call to_dense() first.");
  TORCH_CHECK(takes(list, tensor.scalar_type()), op, ": ", name_of(list, index), " has dtype ", tensor.scalar_type(),
              ". Supported are ", list.takes_double ? "Half, BFloat16, Float and Double" : "Half, BFloat16 and Float", ".");
  TORCH_CHECK(tensor.is_non_overlapping_and_dense(), op, ": ", name_of(list, index), " with sizes ", tensor.sizes(),
              " and strides ", tensor.strides(), " does not fill its memory without gaps or repeats. Call contiguous() first.");
  TORCH_CHECK(!tensor.is_neg(), op, ": ", name_of(list, index),
              " is a negated view, whose memory has the other sign. Call resolve_neg() first.");
  TORCH_CHECK(allows(list.access, tensor, c10::InferenceMode::is_enabled()), op, ": ", name_of(list, index),
              " was made in inference mode and may only be written there. Call clone() first.");
}

void check_codes(const char* op, const TensorList& list, const TensorList& of, size_t index) {
  const at::Tensor& codes = list.tensors[index];
  const int64_t bytes = rules::quantized_bytes(of.tensors[index].numel());
  TORCH_CHECK(codes.dim() == 1 && codes.numel() == bytes, op, ": ", name_of(list, index), " has sizes ", codes.sizes(), " and ",
              name_of(of, index), " has ", of.tensors[index].numel(), " elements. Moments of 8 bits of these are a tensor of ",
              bytes, " bytes: 33 for each group of 32.");
}

void check_pair(const char* op, const TensorList& a, const TensorList& b, size_t index) {
  const at::Tensor& left = a.tensors[index];
  const at::Tensor& right = b.tensors[index];
  const bool has_codes = is_code(right.scalar_type());
  if (has_codes) check_codes(op, b, a, index);
  TORCH_CHECK(has_codes || left.numel() == right.numel(), op, ": ", name_of(a, index), " has ", left.numel(),
              " elements (sizes ", left.sizes(), ") and ", name_of(b, index), " has ", right.numel(), " (sizes ", right.sizes(),
              "). Tensors of one index must have the same number of elements.");
  TORCH_CHECK(left.device() == right.device(), op, ": ", name_of(a, index), " is on ", left.device(), " and ",
              name_of(b, index), " on ", right.device(), ". Tensors of one index must be on the same device.");
  TORCH_CHECK(has_codes || same_memory_order(left, right), op, ": ", name_of(a, index), " has sizes ", left.sizes(),
              " and strides ", left.strides(), ", ", name_of(b, index), " has sizes ", right.sizes(), " and strides ",
              right.strides(), ". Tensors of one index must have the same memory layout: make both contiguous.");
}

}  // namespace

std::string name_of(const TensorList& list, size_t index) {
  return c10::str(list.name, "[", index, "]", list.role != nullptr ? c10::str(" (", list.role, ")") : "");
}

void check_lists(const char* op, TensorLists lists) {
  const TensorList& first = lists.front();
  for (const TensorList& list : lists) {
    TORCH_CHECK(list.tensors.size() == first.tensors.size(), op, ": size mismatch: ", first.name, " has ", first.tensors.size(),
                " tensors and ", list.name, " has ", list.tensors.size(),
                ". Lists are matched by index and must have the same length.");
  }
  for (size_t index = 0; index < first.tensors.size(); ++index) {
    for (const TensorList& list : lists) check_tensor(op, list, index);
    for (const TensorList& list : lists.slice(1)) check_pair(op, first, list, index);
  }
  check_outputs_apart(op, lists);
}

void check_found_inf(const char* op, const at::Tensor& found_inf) {
  TORCH_CHECK(found_inf.defined(), op, ": found_inf is undefined. Pass an int32 tensor of one element.");
  TORCH_CHECK(found_inf.scalar_type() == at::kInt && found_inf.numel() == 1, op,
              ": found_inf must be an Int tensor of one element, got ", found_inf.scalar_type(), " with sizes ",
              found_inf.sizes(), ".");
}

namespace {

// The bytes of memory that a tensor covers.
struct Extent {
  const char* begin;
  const char* end;
  c10::Device device;
  const TensorList* list;
  size_t index;
};

Extent extent_of(const TensorList& list, size_t index) {
  const at::Tensor& tensor = list.tensors[index];
  const char* begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + tensor.numel() * static_cast<int64_t>(tensor.element_size()), tensor.device(), &list, index};
}

bool starts_before(const Extent& a, const Extent& b) {
  if (a.device != b.device) return std::pair(a.device.type(), a.device.index()) < std::pair(b.device.type(), b.device.index());
  return std::less<>()(a.begin, b.begin);
}

// Whether `a` ends before `b` begins. Extents are ordered by device, then by address.
bool ends_before(const Extent& a, const Extent& b) {
  if (a.device != b.device) return starts_before(a, b);
  return std::less_equal<>()(a.end, b.begin);
}

bool overlap(const Extent& a, const Extent& b) {
  return a.device == b.device && std::less<>()(a.begin, b.end) && std::less<>()(b.begin, a.end);
}

bool works_in_place(const Extent& input, const Extent& output) {
  return input.index == output.index && input.begin == output.begin && input.end == output.end;
}

std::vector<Extent> extents_of(TensorLists lists, Access access) {
  std::vector<Extent> extents;
  for (const TensorList& list : lists) {
    if (list.access != access) continue;
    for (size_t index = 0; index < list.tensors.size(); ++index) {
      const Extent extent = extent_of(list, index);
      // Meta tensors have elements but no memory.
      if (extent.begin != nullptr && extent.begin != extent.end) extents.push_back(extent);
    }
  }
  std::sort(extents.begin(), extents.end(), starts_before);
  return extents;
}

[[noreturn]] void refuse(const char* op, const Extent& output, const Extent& other) {
  TORCH_CHECK(
      false, op, ": ", name_of(*output.list, output.index), " shares memory with ", name_of(*other.list, other.index),
      ". An output may share memory only with an input of its own index, and then wholly and with the same element size.");
}

}  // namespace

void check_outputs_apart(const char* op, TensorLists lists) {
  const std::vector<Extent> outputs = extents_of(lists, Access::write);
  for (size_t i = 1; i < outputs.size(); ++i) {
    if (overlap(outputs[i - 1], outputs[i])) refuse(op, outputs[i], outputs[i - 1]);
  }
  if (outputs.empty()) return;
  // Inputs and outputs are sorted and outputs do not overlap, so one walk over both finds all overlaps.
  auto output = outputs.begin();
  for (const Extent& input : extents_of(lists, Access::read)) {
    while (output != outputs.end() && ends_before(*output, input)) ++output;
    for (auto it = output; it != outputs.end() && overlap(*it, input); ++it) {
      if (!works_in_place(input, *it)) refuse(op, *it, input);
    }
  }
}

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
