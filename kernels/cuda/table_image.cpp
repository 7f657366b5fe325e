#include "kernels/cuda/table_image.h"

#include <cstring>

namespace apex::kernels::cuda {
namespace {

static_assert(kLists == plan::kMaxLists && kChunk == plan::kChunkSize && kChunk % kSpan == 0);

constexpr uintptr_t kAccess = 16;  // bytes

Dtype dtype_of(at::ScalarType dtype) {
  if (dtype == at::kHalf) return Dtype::half;
  if (dtype == at::kBFloat16) return Dtype::bfloat16;
  if (dtype == at::kFloat) return Dtype::float32;
  if (plan::is_remainder(dtype) || plan::is_code(dtype)) return Dtype::half;  // not read
  TORCH_INTERNAL_ASSERT(dtype == at::kDouble, "no storage for ", dtype);
  return Dtype::float64;
}

// A bit for each list in which packs that start `shift` elements before the tensor are aligned to 16 bytes.
uint8_t aligned_lists(const plan::TensorRow& row, const plan::Group& group, int shift) {
  uint8_t aligned = 0;
  for (size_t i = 0; i < kLists; ++i) {
    if (row.data[i] == nullptr) continue;
    const auto before = static_cast<uintptr_t>(shift) * c10::elementSize(group.dtypes[i]);
    if ((reinterpret_cast<uintptr_t>(row.data[i]) - before) % kAccess == 0) aligned |= static_cast<uint8_t>(1u << i);
  }
  return aligned;
}

int bit_count(uint8_t bits) {
  int count = 0;
  for (; bits != 0; bits &= static_cast<uint8_t>(bits - 1)) ++count;
  return count;
}

Row row_of(const plan::TensorRow& source, const plan::Group& group) {
  Row row{};
  row.numel = source.numel;
  row.index = static_cast<int32_t>(source.index);
  row.has_double = group.has_double();
  for (size_t i = 0; i < kLists; ++i) {
    row.data[i] = source.data[i];
    row.dtypes[i] = dtype_of(group.dtypes[i]);
    if (plan::is_remainder(group.dtypes[i])) row.remainder_bits = group.dtypes[i] == at::kShort ? 16 : 8;
  }
  row.aligned = aligned_lists(source, group, 0);
  for (int shift = 1; shift < kPack; ++shift) {
    const uint8_t aligned = aligned_lists(source, group, shift);
    if (bit_count(aligned) <= bit_count(row.aligned)) continue;
    row.aligned = aligned;
    row.shift = static_cast<uint8_t>(shift);
  }
  return row;
}

// Appends the row's parts of `size` elements, and returns the index of the first.
int64_t add_parts(std::vector<int32_t>& row_of_part, int64_t numel, int64_t size, size_t row) {
  const auto first = row_of_part.size();
  row_of_part.resize(first + static_cast<size_t>((numel + size - 1) / size), static_cast<int32_t>(row));
  return static_cast<int64_t>(first);
}

// Reserves space for `count` values after the first `size` bytes, and returns its offset.
template <class Value>
size_t reserve(size_t& size, size_t count) {
  static_assert(alignof(Value) <= 16);
  const size_t at = (size + 15) / 16 * 16;
  size = at + count * sizeof(Value);
  return at;
}

template <class Value>
Value* value_at(void* memory, size_t at) {
  return memory == nullptr ? nullptr : reinterpret_cast<Value*>(static_cast<char*>(memory) + at);
}

template <class Value>
void copy_into(std::vector<std::byte>& bytes, size_t at, const std::vector<Value>& values) {
  if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof(Value));
}

}  // namespace

TableImage::TableImage(const plan::Plan& plan, c10::Device device) : count_(plan.count) {
  write_rows(plan, device);
  size_t size = 0;
  rows_at_ = reserve<Row>(size, rows_.size());
  chunk_rows_at_ = reserve<int32_t>(size, chunk_rows_.size());
  span_rows_at_ = reserve<int32_t>(size, span_rows_.size());
  bytes_.resize(size);
  chunk_sums_at_ = reserve<double>(scratch_size_, kSums * chunk_rows_.size());
  row_sums_at_ = reserve<double>(scratch_size_, kSums * count_);
  tickets_at_ = reserve<uint32_t>(scratch_size_, rows_.size() + 1);
  copy_into(bytes_, rows_at_, rows_);
  copy_into(bytes_, chunk_rows_at_, chunk_rows_);
  copy_into(bytes_, span_rows_at_, span_rows_);
}

void TableImage::write_rows(const plan::Plan& plan, c10::Device device) {
  for (const plan::Group& group : plan) {
    if (group.device != device) continue;
    for (const plan::TensorRow& source : group.rows) {
      Row row = row_of(source, group);
      has_double_ = has_double_ || row.has_double;
      row.first_chunk = add_parts(chunk_rows_, row.numel, kChunk, rows_.size());
      row.first_span = add_parts(span_rows_, row.numel, kSpan, rows_.size());
      rows_.push_back(row);
    }
  }
}

Table TableImage::table_at(void* memory, void* scratch) const {
  auto* const tickets = value_at<uint32_t>(scratch, tickets_at_);
  return {value_at<const Row>(memory, rows_at_),
          {value_at<const int32_t>(memory, chunk_rows_at_), static_cast<int64_t>(chunk_rows_.size())},
          {value_at<const int32_t>(memory, span_rows_at_), static_cast<int64_t>(span_rows_.size())},
          static_cast<int64_t>(count_),
          has_double_,
          value_at<double>(scratch, chunk_sums_at_),
          value_at<double>(scratch, row_sums_at_),
          tickets,
          tickets == nullptr ? nullptr : tickets + rows_.size()};
}

}  // namespace apex::kernels::cuda
