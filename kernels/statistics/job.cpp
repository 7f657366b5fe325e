#include "kernels/statistics/job.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace apex::kernels::statistics {
namespace {

// On the device, in a tensor that owns them.
at::Tensor placed(std::vector<Row>& rows, c10::Device device) {
  const auto bytes = static_cast<int64_t>(rows.size() * sizeof(Row));
  return at::from_blob(rows.data(), {bytes}, at::kByte).to(device, at::kByte, /*non_blocking=*/false, /*copy=*/true);
}

template <class Real>
TensorStatistics read_table(const int64_t* counts) {
  TensorStatistics found;
  found.zeros = counts[0];
  const int64_t* const last = counts + kBins<Real> - kParts;
  found.inf = last[0];
  for (int part = 1; part < kParts; ++part) found.nan += last[part];
  for (int row = 1; row + 1 < Format<Real>::kRows; ++row) {
    ExponentCounts of_row{Format<Real>::kOneBelow + row, {}};
    std::copy_n(counts + row * kParts, kParts, of_row.parts.begin());
    if (of_row.parts != decltype(of_row.parts){}) found.exponents.push_back(of_row);
  }
  return found;
}

}  // namespace

JobMemory::JobMemory(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  std::vector<Row> rows;
  for (const at::Tensor& tensor : tensors_) {
    rows.push_back({tensor.const_data_ptr(), tensor.numel(), job_.tiles});
    job_.tiles += tiles_of(tensor.numel());
  }
  job_.tensors = static_cast<int64_t>(rows.size());
  const int64_t bins = dtype() == at::kDouble ? kBins<double> : kBins<float>;
  const auto options = at::TensorOptions().device(device());
  rows_ = placed(rows, device());
  sums_ = at::empty({job_.tiles * (kLanes + 1) + job_.tensors, sizeof(Sums) / sizeof(double)}, options.dtype(at::kDouble));
  counts_ = at::zeros({job_.tensors, bins}, options.dtype(at::kLong));
  job_.rows = static_cast<const Row*>(rows_.const_data_ptr());
  job_.of_tensor = static_cast<Sums*>(sums_.mutable_data_ptr());
  job_.of_tile = job_.of_tensor + job_.tensors;
  job_.lanes = job_.of_tile + job_.tiles;
  job_.counts = counts_.mutable_data_ptr<int64_t>();
}

std::vector<TensorStatistics> JobMemory::results() const {
  const at::Tensor sums = sums_.narrow(0, 0, job_.tensors).cpu(), counts = counts_.cpu();
  const auto* const of_tensor = static_cast<const Sums*>(sums.const_data_ptr());
  std::vector<TensorStatistics> results;
  for (int64_t i = 0; i < job_.tensors; ++i) {
    const int64_t* const table = counts.const_data_ptr<int64_t>() + i * counts.size(1);
    results.push_back(dtype() == at::kDouble ? read_table<double>(table) : read_table<float>(table));
    results.back().sum = of_tensor[i].sum;
    results.back().sum_of_squares = of_tensor[i].squares;
    results.back().abs_max = of_tensor[i].abs_max;
  }
  return results;
}

}  // namespace apex::kernels::statistics
