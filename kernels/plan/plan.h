#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace apex::kernels::plan {

enum class Access { read, write };

// One list of a call: the name that errors use, its tensors, what the call does to them, and whether they may be float64.
struct TensorList {
  const char* name;
  at::TensorList tensors;
  Access access;
  bool takes_double = true;
  const char* role = nullptr;  // behind the name, where that does not say it
};

using TensorLists = c10::ArrayRef<TensorList>;

// "params[1]", or with a role "tensor_lists[0][1] (params)".
std::string name_of(const TensorList& list, size_t index);

// Throws c10::Error unless the lists of the call `op` fit together as kernels/multi_tensor.h says.
void check_lists(const char* op, TensorLists lists);

// Throws c10::Error unless `found_inf` is an int32 tensor of one element.
void check_found_inf(const char* op, const at::Tensor& found_inf);

// Throws c10::Error if an output shares memory with another tensor of the call, unless it is exactly (same start, same element
// size) an input of its own index: that is work in place. Expects tensors that are dense.
void check_outputs_apart(const char* op, TensorLists lists);

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
