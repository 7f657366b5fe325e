#pragma once

#include <apex_cpp/multi_tensor_apply/metadata.h>
#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

#include <limits>

namespace apex::amp_C::detail {

// Fills launch after launch with tensors and the blocks that work on their chunks.
template <int depth, class Run>
class LaunchBuilder {
 public:
  LaunchBuilder(const TensorLists& tensor_lists, int64_t chunk_size, const Run& run)
      : lists_(tensor_lists), chunk_size_(chunk_size), run_(run) {}

  void build() {
    for (size_t index = 0; index < lists_[0].size(); ++index) {
      if (tensors_ == max_tensors(depth)) launch(index);
      add_tensor(index);
    }
    launch(lists_[0].size());
  }

 private:
  // A tensor without elements takes a place, so that places count up like indices, and gets no block.
  void add_tensor(size_t index) {
    const int64_t numel = lists_[0][index].numel();
    place(index);
    for (int64_t offset = 0, chunk = 0; offset < numel; offset += chunk_size_, ++chunk) {
      if (blocks_ == kMaxBlocks) {
        launch(index);
        place(index);
      }
      tl_.block_to_tensor[blocks_] = static_cast<unsigned char>(tensors_ - 1);
      tl_.block_to_chunk[blocks_] = static_cast<int>(chunk);
      elements_ += numel - offset < chunk_size_ ? numel - offset : chunk_size_;
      ++blocks_;
    }
  }

  void place(size_t index) {
    for (int list = 0; list < depth; ++list)
      tl_.addresses[list][tensors_] = lists_[static_cast<size_t>(list)][index].data_ptr();
    tl_.sizes[tensors_] = lists_[0][index].numel();
    ++tensors_;
  }

  void launch(size_t next) {
    if (blocks_ > 0) run_(tl_, blocks_, elements_);
    tl_.start_tensor_this_launch = static_cast<int64_t>(next);
    tensors_ = blocks_ = 0;
    elements_ = 0;
  }

  const TensorLists& lists_;
  int64_t chunk_size_;
  const Run& run_;
  TensorListMetadata<depth> tl_ = {};
  int tensors_ = 0;
  int blocks_ = 0;
  int64_t elements_ = 0;
};

// run(metadata, number of blocks, elements that they work on) for each launch that the lists need: no limit to the number of
// tensors or to their sizes, tensors without elements anywhere in the lists (MTA-05, MTA-06, MTA-07).
template <int depth, class Run>
void for_each_launch(const char* op, const TensorLists& tensor_lists, int64_t chunk_size, const Run& run) {
  for (const at::Tensor& tensor : tensor_lists[0]) {
    TORCH_CHECK_VALUE(tensor.numel() / chunk_size < std::numeric_limits<int>::max(), op, ": chunk_size ", chunk_size,
                      " is too small for a tensor of ", tensor.numel(), " elements.");
  }
  LaunchBuilder<depth, Run>(tensor_lists, chunk_size, run).build();
}

}  // namespace apex::amp_C::detail
