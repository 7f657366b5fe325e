#pragma once

#include <cstdint>

#include "kernels/rules/arithmetic.h"

// The tensors of a call, for kernels: a table in device memory, created once per plan and read by every launch. Kernels take
// `Table`, which holds only addresses and counts, by value.
namespace apex::kernels::cuda {

enum class Dtype : uint8_t { half, bfloat16, float32, float64 };

constexpr int kLists = 5;
constexpr int kSums = 2;

// Elements that a thread processes at a time in an update: one 16-byte access for a 16-bit type, two for float32.
constexpr int kPack = 8;

// The tensors of one index. The first pack of kPack elements starts `shift` elements before the tensor, so that 16-byte
// accesses are aligned in the lists whose bit of `aligned` is set. Elements outside of the tensor are masked.
struct Row {
  void* data[kLists];  // nullptr: the call has fewer lists
  int64_t numel;
  int64_t first_chunk, first_span;
  int32_t index;
  Dtype dtypes[kLists];  // without meaning for remainders and codes
  uint8_t shift;
  uint8_t aligned;
  bool has_double;
  uint8_t
      remainder_bits;  // 16 or 8 if the list behind a rule's own holds remainders of bfloat16 parameters (rules/remainder.h)

  DEVICE_BODY int remainders() const { return remainder_bits; }
  DEVICE_BODY Dtype dtype(int list) const { return dtypes[list]; }
  DEVICE_BODY bool is_aligned(int list) const { return (aligned >> list & 1) != 0; }
};

// Tensors cut into parts of equal size, in order: row_of[i] is the row that part i belongs to.
struct Parts {
  const int32_t* row_of;
  int64_t count;
};

// Launches with sums process chunks, whose size determines the order of the sums (rules/rule.h). Other launches process spans:
// smaller parts, so that blocks finish at about the same time.
constexpr int64_t kChunk = 65536;
constexpr int64_t kSpan = 8192;

struct Table {
  const Row* rows;
  Parts chunks, spans;
  int64_t count;    // tensors of the call
  bool has_double;  // whether one of the rows has float64
  // Scratch memory of one launch at a time. nullptr for launches without sums and without finish().
  double* all_chunk_sums;
  double* all_row_sums;
  uint32_t* row_tickets;  // both tickets are 0 between launches
  uint32_t* grid_ticket;

  // Sum `s` by chunk, and by tensor index (0 for empty tensors and tensors on other devices).
  DEVICE_BODY double* chunk_sums(int s) const { return all_chunk_sums + s * chunks.count; }
  DEVICE_BODY double* row_sums(int s) const { return all_row_sums + s * count; }
};

// Elements [begin, begin + size) of a row.
struct Part {
  const Row* row;
  int64_t begin, size;
};

DEVICE_BODY inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

DEVICE_BODY inline Part chunk_at(const Table& table, int64_t i) {
  const Row& row = table.rows[table.chunks.row_of[i]];
  const int64_t begin = (i - row.first_chunk) * kChunk;
  return {&row, begin, smaller(kChunk, row.numel - begin)};
}

DEVICE_BODY inline Part span_at(const Table& table, int64_t i) {
  const Row& row = table.rows[table.spans.row_of[i]];
  const int64_t begin = (i - row.first_span) * kSpan;
  return {&row, begin, smaller(kSpan, row.numel - begin)};
}

}  // namespace apex::kernels::cuda
