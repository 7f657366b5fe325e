#include "kernels/plan/reuse.h"

#include <array>

namespace apex::kernels::plan {
namespace {

// What groups are made from, of one tensor. No geometry is kept of a contiguous one.
struct Fingerprint {
  const void* data;
  int64_t numel;
  at::ScalarType dtype;
  c10::Device device;
  std::vector<int64_t> geometry;
};

// The address for the access of its list: memory that a copy-on-write tensor shares is left when it is asked for for writing.
const void* address_of(const at::Tensor& tensor, Access access) {
  return access == Access::write ? tensor.mutable_data_ptr() : tensor.const_data_ptr();
}

bool same_geometry(const Fingerprint& print, const at::Tensor& tensor) {
  if (print.geometry.empty() || tensor.is_contiguous()) return print.geometry.empty() && tensor.is_contiguous();
  const c10::ArrayRef<int64_t> all(print.geometry);
  const auto dim = static_cast<size_t>(tensor.dim());
  return all.size() == 2 * dim && all.slice(0, dim) == tensor.sizes() && all.slice(dim) == tensor.strides();
}

bool matches(const Fingerprint& print, const at::Tensor& tensor, Access access) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.numel() == print.numel &&
         tensor.scalar_type() == print.dtype && tensor.device() == print.device && same_geometry(print, tensor) &&
         address_of(tensor, access) == print.data;
}

Fingerprint fingerprint_of(const at::Tensor& tensor, Access access) {
  Fingerprint print{address_of(tensor, access), tensor.numel(), tensor.scalar_type(), tensor.device(), {}};
  if (tensor.is_contiguous()) return print;
  print.geometry = tensor.sizes().vec();
  print.geometry.insert(print.geometry.end(), tensor.strides().begin(), tensor.strides().end());
  return print;
}

// One call's lists, and what was made from them.
class Remembered {
 public:
  Remembered() = default;
  Remembered(TensorLists lists, Groups groups) : groups_(std::move(groups)) {
    for (const TensorList& list : lists) {
      accesses_.push_back(list.access);
      for (const at::Tensor& tensor : list.tensors) tensors_.push_back(fingerprint_of(tensor, list.access));
    }
  }

  const Groups& groups() const { return groups_; }

  bool matches_all(TensorLists lists) const {
    if (groups_ == nullptr || lists.size() != accesses_.size()) return false;
    for (size_t i = 0; i < lists.size(); ++i) {
      if (lists[i].access != accesses_[i] || lists[i].tensors.size() * lists.size() != tensors_.size()) return false;
    }
    const Fingerprint* print = tensors_.data();
    for (const TensorList& list : lists) {
      for (const at::Tensor& tensor : list.tensors) {
        if (!matches(*print++, tensor, list.access)) return false;
      }
    }
    return true;
  }

 private:
  std::vector<Access> accesses_;
  std::vector<Fingerprint> tensors_;  // list by list
  Groups groups_;
};

}  // namespace

Groups checked_groups(const char* op, TensorLists lists) {
  // Enough for the passes of a step over a few parameter groups.
  thread_local std::array<Remembered, 16> remembered;
  thread_local size_t next = 0;
  for (const Remembered& call : remembered) {
    if (call.matches_all(lists)) return call.groups();
  }
  check_lists(op, lists);
  auto groups = std::make_shared<const Plan>(Plan{make_groups(lists), lists.front().tensors.size(), nullptr});
  remembered[next++ % remembered.size()] = Remembered(lists, groups);
  return groups;
}

}  // namespace apex::kernels::plan
