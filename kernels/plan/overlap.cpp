#include "kernels/plan/overlap.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace apex::kernels::plan {
namespace {

// Bytes of memory that a tensor covers, and which tensor that is.
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

// Whether `a` lies wholly before the start of `b`, on the same device or an earlier one.
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
  // Both are sorted and outputs do not overlap: walk along.
  auto output = outputs.begin();
  for (const Extent& input : extents_of(lists, Access::read)) {
    while (output != outputs.end() && ends_before(*output, input)) ++output;
    for (auto it = output; it != outputs.end() && overlap(*it, input); ++it) {
      if (!works_in_place(input, *it)) refuse(op, *it, input);
    }
  }
}

}  // namespace apex::kernels::plan
