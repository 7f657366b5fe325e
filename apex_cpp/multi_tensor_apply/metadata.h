#pragma once

#include <c10/macros/Macros.h>

#include <cstddef>
#include <cstdint>

// What a functor of multi_tensor_apply is given, for host and device code.
namespace apex::amp_C {

/// The indices of a chunk's elements that the calling thread works on, for a range-based `for`: all of them on the CPU, every
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
    // Threads of a block meet the end in strides: "not yet there" is what counts.
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

/// The most blocks and tensors of one launch. Metadata is passed to the CUDA kernel by value: of the 4 KiB that all arguments
/// may have, more than 600 bytes are left to the functor and its own arguments.
constexpr int kMaxBlocks = 320;
constexpr int max_tensors(int depth) { return 1800 / (8 * (depth + 1)); }

/// The tensors of one launch, and which block works on which chunk. Apex: TensorListMetadata. Its fields have the names and the
/// meaning that they have there.
template <int depth>
struct TensorListMetadata {
  static_assert(depth >= 1 && max_tensors(depth) >= 1, "too many tensor lists");

  void* addresses[size_t{depth}][size_t{max_tensors(depth)}];  // [list][tensor of this launch]
  int64_t sizes[size_t{max_tensors(depth)}];                   // elements; tensors of one index have the same number
  unsigned char block_to_tensor[kMaxBlocks];                   // block -> tensor of this launch
  int block_to_chunk[kMaxBlocks];                              // block -> chunk of that tensor
  int64_t start_tensor_this_launch;                            // where in the lists the first tensor of this launch is
  int host_block;                                              // on the CPU: the block that runs

  /// The block that runs: blockIdx.x on CUDA.
  C10_HOST_DEVICE int block() const {
#ifdef __CUDA_ARCH__
    return static_cast<int>(blockIdx.x);
#else
    return host_block;
#endif
  }
};

/// The part of the tensors of one index that the running block works on: what an Apex functor works out for itself from the
/// metadata in its first lines. With 64-bit offsets.
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

  /// Indices 0 to size() - 1, those that the calling thread works on.
  C10_HOST_DEVICE Elements elements() const { return Elements(size_); }

 private:
  const TensorListMetadata<depth>& tl_;
  int slot_;
  int64_t offset_;
  int64_t size_;
};

}  // namespace apex::amp_C
