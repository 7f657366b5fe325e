#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

#include <c10/macros/Macros.h>

#include <cstddef>
#include <cstdint>
#include <limits>

// The metadata that multi_tensor_apply passes to a functor, for host and device code.
namespace apex::amp_C {

/// The indices of a chunk's elements that the calling thread processes, for a range-based `for`: all of them on the CPU, every
/// blockDim.x-th on CUDA.
class Elements {
 public:
  class Iterator {
   public:
    C10_HOST_DEVICE explicit Iterator(int64_t index) : index_(index) {}
    C10_HOST_DEVICE int64_t operator*() const { return index_; }
    C10_HOST_DEVICE Iterator& operator++() {
#ifdef __CUDA_ARCH__
      index_ += blockDim.x;
#else
      ++index_;
#endif
      return *this;
    }
    // A thread's stride may step over the end, hence `<`.
    C10_HOST_DEVICE bool operator!=(const Iterator& end) const { return index_ < end.index_; }

   private:
    int64_t index_;
  };

  C10_HOST_DEVICE explicit Elements(int64_t size) : size_(size) {}
  C10_HOST_DEVICE Iterator begin() const {
#ifdef __CUDA_ARCH__
    return Iterator(threadIdx.x);
#else
    return Iterator(0);
#endif
  }
  C10_HOST_DEVICE Iterator end() const { return Iterator(size_); }

 private:
  int64_t size_;
};

/// The largest numbers of blocks and tensors of one launch. The metadata is passed to the CUDA kernel by value. Of the 4 KiB
/// for all arguments, it leaves more than 600 bytes for the functor and its own arguments.
constexpr int kMaxBlocks = 320;
constexpr int max_tensors(int depth) { return 1800 / (8 * (depth + 1)); }

/// The tensors of one launch, and the chunk that each block processes. Apex: TensorListMetadata, with the same field names and
/// meanings.
template <int depth>
struct TensorListMetadata {
  static_assert(depth >= 1 && max_tensors(depth) >= 1, "too many tensor lists");

  void* addresses[size_t{depth}][size_t{max_tensors(depth)}];  // [list][tensor of this launch]
  int64_t sizes[size_t{max_tensors(depth)}];                   // elements; tensors of one index have the same number
  unsigned char block_to_tensor[kMaxBlocks];                   // block -> tensor of this launch
  int block_to_chunk[kMaxBlocks];                              // block -> chunk of that tensor
  int64_t start_tensor_this_launch;                            // index in the lists of the first tensor of this launch
  int host_block;                                              // on the CPU: index of the running block

  /// The index of the running block; on CUDA blockIdx.x.
  C10_HOST_DEVICE int block() const {
#ifdef __CUDA_ARCH__
    return static_cast<int>(blockIdx.x);
#else
    return host_block;
#endif
  }
};

/// The chunk that the running block processes: the part of the tensors of one index. An Apex functor computes it from the
/// metadata in its first lines. Offsets have 64 bits.
template <int depth>
class Chunk {
 public:
  C10_HOST_DEVICE Chunk(const TensorListMetadata<depth>& tl, int64_t chunk_size)
      : tl_(tl), slot_(tl.block_to_tensor[tl.block()]), offset_(tl.block_to_chunk[tl.block()] * chunk_size) {
    const int64_t rest = tl.sizes[slot_] - offset_;
    size_ = rest < chunk_size ? rest : chunk_size;
  }

  /// The tensors' index in the lists. Apex: tensor_num.
  C10_HOST_DEVICE int64_t tensor() const { return tl_.start_tensor_this_launch + slot_; }
  /// The chunk's first element in its tensor.
  C10_HOST_DEVICE int64_t offset() const { return offset_; }
  /// The chunk's number of elements, at least 1.
  C10_HOST_DEVICE int64_t size() const { return size_; }

  /// The chunk's first element in the tensor of `list`, which holds elements of type T.
  template <class T>
  C10_HOST_DEVICE T* data(int list) const {
    return static_cast<T*>(tl_.addresses[list][slot_]) + offset_;
  }

  /// The indices, from 0 to size() - 1, that the calling thread processes.
  C10_HOST_DEVICE Elements elements() const { return Elements(size_); }

 private:
  const TensorListMetadata<depth>& tl_;
  int slot_;
  int64_t offset_;
  int64_t size_;
};

}  // namespace apex::amp_C

namespace apex::amp_C::detail {

// Distributes tensors, and a block for each of their chunks, over launches.
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
  // An empty tensor gets a slot, so that slots count up like indices, but no block.
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

// Calls run(metadata, number of blocks, number of elements) for each launch that the lists need. Any number of tensors of any
// size, also empty ones (MTA-05, MTA-06, MTA-07).
template <int depth, class Run>
void for_each_launch(const char* op, const TensorLists& tensor_lists, int64_t chunk_size, const Run& run) {
  for (const at::Tensor& tensor : tensor_lists[0]) {
    TORCH_CHECK_VALUE(tensor.numel() / chunk_size < std::numeric_limits<int>::max(), op, ": chunk_size ", chunk_size,
                      " is too small for a tensor of ", tensor.numel(), " elements.");
  }
  LaunchBuilder<depth, Run>(tensor_lists, chunk_size, run).build();
}

}  // namespace apex::amp_C::detail
