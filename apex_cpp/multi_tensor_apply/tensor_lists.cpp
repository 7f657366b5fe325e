#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

#include "kernels/memory_order.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string>

namespace apex::amp_C::detail {

void for_each_host_block(int blocks, int64_t elements, c10::function_ref<void(int begin, int end)> run) {
  constexpr int64_t kElementsPerThread = 32768;
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread * blocks / std::max<int64_t>(1, elements));
  at::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) { run(static_cast<int>(begin), static_cast<int>(end)); });
}

}  // namespace apex::amp_C::detail

namespace apex::amp_C {
namespace {

// The lists of one call, with their checks.
class Lists {
 public:
  Lists(const char* op, const TensorLists& lists, c10::ArrayRef<const char*> roles) : op_(op), lists_(lists), roles_(roles) {}

  void check_lengths(size_t depth) const {
    TORCH_CHECK(lists_.size() == depth, op_, ": got ", lists_.size(), " tensor lists, expected ", depth, expected_roles(depth),
                ".");
    TORCH_CHECK(!lists_[0].empty(), op_, ": ", list_name(0), " is empty. Leave out the call if there is nothing to do.");
    for (size_t list = 1; list < depth; ++list) {
      TORCH_CHECK(lists_[list].size() == lists_[0].size(), op_, ": ", list_name(list), " has ", lists_[list].size(),
                  " tensors and ", list_name(0), " has ", lists_[0].size(),
                  ". Lists are matched by index and must have the same length.");
    }
  }

  void check_tensor(size_t list, size_t index) const {
    const at::Tensor& tensor = lists_[list][index];
    TORCH_CHECK(tensor.defined(), op_, ": ", name(list, index), " is undefined. Leave it out of every list.");
    TORCH_CHECK(tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense(), op_, ": ", name(list, index),
                " is sparse, or has gaps or repeats in its memory. Call to_dense() or contiguous() first.");
    check_dtype(list, index);
    const at::Tensor& first = lists_[0][0];
    TORCH_CHECK(tensor.device() == first.device(), op_, ": ", name(list, index), " is on ", tensor.device(), " and ",
                name(0, 0), " on ", first.device(), ". All tensors must be on the same device: make one call for each device.");
  }

  void check_pair(size_t list, size_t index) const {
    const at::Tensor& left = lists_[0][index];
    const at::Tensor& right = lists_[list][index];
    TORCH_CHECK(left.numel() == right.numel(), op_, ": ", name(list, index), " has ", right.numel(), " elements and ",
                name(0, index), " has ", left.numel(), ". Tensors of one index must have the same number of elements.");
    TORCH_CHECK(kernels::same_memory_order(left, right), op_, ": ", name(list, index), " has strides ", right.strides(),
                " and ", name(0, index), " has ", left.strides(),
                ". Tensors of one index must have the same memory layout: make both contiguous.");
  }

 private:
  void check_dtype(size_t list, size_t index) const {
    const auto here = lists_[list][index].scalar_type(), front = lists_[list][0].scalar_type();
    TORCH_CHECK(at::isIntegralType(here, true) == at::isIntegralType(front, true), op_, ": ", name(list, index), " has dtype ",
                here, " and ", name(list, 0), " has ", front,
                ". One call cannot take integers and floating-point numbers: leave the integers out, and copy them.");
    TORCH_CHECK(here == front, op_, ": ", name(list, index), " has dtype ", here, " and ", name(list, 0), " has ", front,
                ". The tensors of one list must have the same dtype: make one call for each dtype.");
  }

  std::string list_name(size_t list) const {
    return c10::str("tensor_lists[", list, "]", list < roles_.size() ? c10::str(" (", roles_[list], ")") : "");
  }

  std::string name(size_t list, size_t index) const {
    return c10::str("tensor_lists[", list, "][", index, "]", list < roles_.size() ? c10::str(" (", roles_[list], ")") : "");
  }

  std::string expected_roles(size_t depth) const {
    std::string text;
    for (size_t list = 0; list < depth && list < roles_.size(); ++list)
      text += (list == 0 ? ": " : ", ") + std::string(roles_[list]);
    return text;
  }

  const char* op_;
  const TensorLists& lists_;
  c10::ArrayRef<const char*> roles_;
};

void check_noop_flag(const char* op, const at::Tensor& noop_flag, c10::Device device) {
  TORCH_CHECK(noop_flag.defined() && noop_flag.scalar_type() == at::kInt && noop_flag.numel() == 1, op,
              ": noop_flag must be an Int tensor of one element",
              noop_flag.defined() ? c10::str(", got ", noop_flag.scalar_type(), " with sizes ", noop_flag.sizes()) : "", ".");
  TORCH_CHECK(noop_flag.device() == device, op, ": noop_flag is on ", noop_flag.device(), " and the tensors on ", device,
              ". They must be on the same device.");
}

}  // namespace

void check_tensor_lists(const char* op, int64_t chunk_size, const at::Tensor& noop_flag, const TensorLists& tensor_lists,
                        size_t depth, c10::ArrayRef<const char*> roles) {
  TORCH_CHECK_VALUE(chunk_size > 0, op, ": chunk_size is ", chunk_size,
                    ". Give a positive number of elements; Apex's default is 65536.");
  const Lists lists(op, tensor_lists, roles);
  lists.check_lengths(depth);
  for (size_t index = 0; index < tensor_lists[0].size(); ++index) {
    for (size_t list = 0; list < depth; ++list) lists.check_tensor(list, index);
    for (size_t list = 1; list < depth; ++list) lists.check_pair(list, index);
  }
  check_noop_flag(op, noop_flag, tensor_lists[0][0].device());
}

}  // namespace apex::amp_C
