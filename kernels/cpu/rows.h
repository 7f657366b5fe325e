#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pass.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>

namespace apex::kernels::cpu {

// Folds value_at(0) ... value_at(count - 1) in the fixed order of rules/rule.h.
template <class Fold, class ValueAt>
double ordered_fold(size_t count, const ValueAt& value_at) {
  double lanes[rules::kLanes];
  const auto used = static_cast<int>(std::min<size_t>(count, rules::kLanes));
  std::fill_n(lanes, rules::folded_lanes(used), 0.0);
  for (size_t i = 0; i < count; ++i) lanes[i % rules::kLanes] = Fold::join(lanes[i % rules::kLanes], value_at(i));
  return rules::fold_lanes<Fold>(lanes, used);
}

// The rule's sum number `sum` for each row of the group, folded from the sums of its chunks.
template <class Rule>
std::vector<double> row_sums(const plan::Group& group, const ChunkSums<Rule>& chunks, size_t sum = 0) {
  std::vector<double> rows(group.rows.size());
  for (size_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
    const int64_t row = group.chunks[begin].row;
    while (end < chunks.size() && group.chunks[end].row == row) ++end;
    rows[static_cast<size_t>(row)] =
        ordered_fold<typename Rule::Fold>(end - begin, [&](size_t i) { return chunks[begin + i][sum]; });
  }
  return rows;
}

// Tensors row by row, for kernels that compute in Real whatever the rows' dtype.

// Reads rows of a tensor as Real. An undefined tensor has no rows.
template <class Real>
class RowReader {
 public:
  RowReader(const at::Tensor& tensor, int64_t size) : size_(size) {
    if (!tensor.defined()) return;
    data_ = static_cast<const char*>(tensor.const_data_ptr());
    bytes_ = size * static_cast<int64_t>(tensor.element_size());
    read_ = reader<Real>(tensor.scalar_type());
  }
  bool defined() const { return data_ != nullptr; }
  // The row itself if it is stored in Real; otherwise converts it into `buffer` and returns that.
  const Real* row(int64_t index, Real* buffer) const {
    const char* const from = data_ + index * bytes_;
    if (read_ == nullptr) return reinterpret_cast<const Real*>(from);
    read_(from, buffer, size_);
    return buffer;
  }

 private:
  const char* data_ = nullptr;
  int64_t size_, bytes_ = 0;
  Reader<Real> read_ = nullptr;
};

template <class Real>
class RowWriter {
 public:
  RowWriter(const at::Tensor& tensor, int64_t size) : size_(size) {
    if (!tensor.defined()) return;
    data_ = static_cast<char*>(tensor.mutable_data_ptr());
    bytes_ = size * static_cast<int64_t>(tensor.element_size());
    write_ = writer<Real>(tensor.scalar_type());
  }
  bool defined() const { return data_ != nullptr; }
  // Writes one whole row from a buffer. Stores mixed with the arithmetic would delay loads from the same offset in other pages.
  void write(int64_t index, const Real* values) const {
    char* const to = data_ + index * bytes_;
    if (write_ != nullptr) {
      write_(values, to, size_);
    } else {
      std::copy_n(values, size_, reinterpret_cast<Real*>(to));
    }
  }
  // Writes the value of a row that has one.
  void write_value(int64_t index, Real value) const {
    char* const to = data_ + index * bytes_;
    if (write_ != nullptr) {
      write_(&value, to, 1);
    } else {
      *reinterpret_cast<Real*>(to) = value;
    }
  }

 private:
  char* data_ = nullptr;
  int64_t size_, bytes_ = 0;
  Writer<Real> write_ = nullptr;
};

template <class Real>
at::TensorOptions real_options() {
  return at::TensorOptions().dtype(c10::CppTypeToScalarType<Real>::value);
}

// `count` buffers of one row each, for every thread of a loop over at most `rows` rows.
template <class Real>
class Buffers {
 public:
  Buffers(int count, int64_t size, int64_t rows)
      : size_((size + 15) / 16 * 16),
        count_(count),
        memory_(at::zeros({std::clamp<int64_t>(rows, 1, at::get_num_threads()), count, size_}, real_options<Real>())) {}
  Real* operator[](int index) const {
    return memory_.mutable_data_ptr<Real>() + (at::get_thread_num() * count_ + index) * size_;
  }

 private:
  int64_t size_;
  int count_;
  at::Tensor memory_;
};

}  // namespace apex::kernels::cpu
