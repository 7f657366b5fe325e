#pragma once

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/plan/plan.h"
#include "kernels/rules/finite.h"

// A chunk is walked in blocks: values of a block are converted to the type that the rule computes in, the rule runs over plain
// arrays, results are converted back. So a rule is compiled once per arithmetic type, not once per mix of dtypes, and blocks
// stay in the first-level cache.
namespace apex::kernels::cpu {

constexpr int64_t kBlock = 512;

// A part of a chunk: elements [offset, offset + size) of the row's tensors, size <= kBlock.
struct Block {
  const plan::TensorRow& row;
  int64_t offset;
  int64_t size;
};

// Reads a block: returns where its values are, which is `buffer` or, if they need no conversion, the tensor itself.
template <class Math>
using Reader = const Math* (*)(const void* data, int64_t offset, int64_t size, Math* buffer);

// Writes a block. `values` does not overlap the tensor.
template <class Math>
using Writer = void (*)(const Math* values, void* data, int64_t offset, int64_t size);

template <class Math>
Reader<Math> reader(at::ScalarType dtype);

template <class Math>
Writer<Math> writer(at::ScalarType dtype);

template <class Math>
bool all_finite(const Math* values, int64_t size) {
  int bad = 0;
  for (int64_t i = 0; i < size; ++i) bad |= !rules::is_finite(values[i]);
  return bad == 0;
}

template <class Visit>
void for_each_block(const plan::Group& group, const plan::Chunk& chunk, const Visit& visit) {
  for (int64_t start = 0; start < chunk.size; start += kBlock) {
    visit(Block{group.rows[static_cast<size_t>(chunk.row)], chunk.offset + start, std::min(kBlock, chunk.size - start)});
  }
}

// Calls visit(i) for each chunk i of the group, on all threads if there is enough work.
template <class Visit>
void for_each_chunk(const plan::Group& group, const Visit& visit) {
  constexpr int64_t kGrain = 32768;  // elements worth a thread
  const auto count = static_cast<int64_t>(group.chunks.size());
  const int64_t chunks_per_thread = std::max<int64_t>(1, kGrain * count / std::max<int64_t>(1, group.numel));
  at::parallel_for(0, count, chunks_per_thread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) visit(i);
  });
}

}  // namespace apex::kernels::cpu
