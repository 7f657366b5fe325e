#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/table.h"
#include "kernels/plan/reuse.h"

namespace apex::kernels::cuda {

// The rows and parts of a table as bytes on the host, to be copied to the device. Sums and tickets are in separate scratch
// memory.
class TableImage {
 public:
  // Of the plan's tensors on `device`.
  TableImage(const plan::Plan& plan, c10::Device device);

  const std::vector<std::byte>& bytes() const { return bytes_; }

  // Bytes that sums and tickets take.
  size_t scratch_size() const { return scratch_size_; }

  // The table for `memory`, a copy of bytes(), and `scratch`, which must be zero at first use. Both are aligned to 16 bytes.
  // `scratch` may be nullptr for launches without sums and tickets.
  Table table_at(void* memory, void* scratch) const;

 private:
  void write_rows(const plan::Plan& plan, c10::Device device);

  std::vector<std::byte> bytes_;
  std::vector<Row> rows_;
  std::vector<int32_t> chunk_rows_, span_rows_;
  size_t count_, scratch_size_ = 0;
  bool has_double_ = false;
  size_t rows_at_, chunk_rows_at_, span_rows_at_;    // in the bytes
  size_t chunk_sums_at_, row_sums_at_, tickets_at_;  // in the scratch
};

// Scratch memory for sums and tickets of launches over one table. Launches on one stream run one after another and share it.
// Launches on other streams may run at the same time, and a CUDA graph may run on any stream: each captured launch has its own.
class Scratch {
 public:
  // Calls make() for each captured launch, and for the first launch on each stream.
  template <class Make>
  at::Tensor of_launch(int64_t stream, bool captured, const Make& make) {
    if (captured) return make();
    at::Tensor& kept = by_stream_[stream];
    if (!kept.defined()) kept = make();
    return kept;
  }

 private:
  std::unordered_map<int64_t, at::Tensor> by_stream_;
};

}  // namespace apex::kernels::cuda
