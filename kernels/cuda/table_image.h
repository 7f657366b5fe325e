#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cuda/table.h"
#include "kernels/plan/reuse.h"

namespace apex::kernels::cuda {

// A table as bytes on the host, to be copied to where kernels read it: rows and parts, then sums and tickets, all zero.
class TableImage {
 public:
  // Of the plan's tensors on `device`.
  TableImage(const plan::Plan& plan, c10::Device device);

  const std::vector<std::byte>& bytes() const { return bytes_; }

  // The table at `memory`, which holds a copy of the bytes and is aligned to 16 bytes.
  Table table_at(void* memory) const;

 private:
  // Room for `count` values; where it begins.
  template <class Value>
  size_t reserve(size_t count);

  void write_rows(const plan::Plan& plan, c10::Device device);

  std::vector<std::byte> bytes_;
  std::vector<Row> rows_;
  std::vector<int32_t> chunk_rows_, span_rows_;
  size_t count_;
  size_t rows_at_, chunk_rows_at_, span_rows_at_, chunk_sums_at_, row_sums_at_, tickets_at_;
};

}  // namespace apex::kernels::cuda
