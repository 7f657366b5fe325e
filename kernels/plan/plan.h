#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/plan/tensor_lists.h"

namespace apex::kernels::plan {

// Elements that one task of a driver works on (MTA-01).
constexpr int64_t kChunkSize = 65536;

// The most lists that a call has.
constexpr size_t kMaxLists = 5;

// A part of a tensor: elements [offset, offset + size) of row `row` of a tensor table.
struct Chunk {
  int64_t row;
  int64_t offset;
  int64_t size;
};

// Cuts tensors of `numels` elements into chunks, in order. Tensors without elements get none.
std::vector<Chunk> make_chunks(c10::ArrayRef<int64_t> numels, int64_t chunk_size = kChunkSize);

// The tensors of one index: where they are in memory, list by list.
struct TensorRow {
  size_t index;
  int64_t numel;
  std::array<void*, kMaxLists> data;
};

// Tensors that a driver can work on in one pass: same device, same dtype list by list, none empty.
struct Group {
  c10::Device device;
  std::array<at::ScalarType, kMaxLists> dtypes;  // at::kFloat behind the last list
  std::vector<TensorRow> rows;
  std::vector<Chunk> chunks;
  int64_t numel = 0;  // of all rows together

  bool has_double() const;
};

// Splits lists that check_lists has passed into groups, in order of first appearance. Addresses are those of the tensors'
// current memory; the plan does not keep it alive.
std::vector<Group> make_groups(TensorLists lists);

}  // namespace apex::kernels::plan
