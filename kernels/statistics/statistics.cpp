#include "kernels/statistics/statistics.h"

#include "kernels/statistics/cpu/statistics_cpu.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace apex::kernels::statistics {
namespace {

// Copies the rows to the device, into a tensor that owns them.
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
  sums_ = at::empty({job_.tiles + job_.tensors, sizeof(Sums) / sizeof(double)}, options.dtype(at::kDouble));
  counts_ = at::zeros({job_.tensors, bins}, options.dtype(at::kLong));
  job_.rows = static_cast<const Row*>(rows_.const_data_ptr());
  job_.of_tensor = static_cast<Sums*>(sums_.mutable_data_ptr());
  job_.of_tile = job_.of_tensor + job_.tensors;
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

namespace apex::kernels {
namespace {

// A table of bins takes 9 KB per tensor (float64: 67 KB).
constexpr size_t kMostTensors = 1024;

#ifdef APEX_CPP_HAS_CUDA
constexpr bool kHasCuda = true;
constexpr auto* kRunOnCuda = statistics::cuda::run;
#else
constexpr bool kHasCuda = false;
constexpr void (*kRunOnCuda)(at::ScalarType, c10::Device, const statistics::Job&) = nullptr;
#endif

void run(const statistics::JobMemory& memory) {
  const statistics::Job& job = memory.job();
  memory.device().is_cpu() ? statistics::cpu::run(memory.dtype(), job) : kRunOnCuda(memory.dtype(), memory.device(), job);
}

// The tensor, on a device with kernels and dense in memory, in any order of dimensions.
at::Tensor readable(const at::Tensor& tensor) {
  const bool stays = tensor.is_cpu() || (tensor.is_cuda() && kHasCuda);
  const at::Tensor plain = (stays ? tensor : tensor.cpu()).detach().resolve_neg();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

// Indices of at most kMostTensors tensors of one device and dtype.
using Indices = std::vector<size_t>;

std::vector<Indices> batches_of(at::TensorList tensors) {
  std::map<std::tuple<at::DeviceType, int, at::ScalarType>, Indices> kinds;
  std::vector<Indices> batches;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    Indices& kind = kinds[{tensor.device().type(), tensor.device().index(), tensor.scalar_type()}];
    kind.push_back(i);
    if (kind.size() == kMostTensors) batches.push_back(std::exchange(kind, {}));
  }
  for (auto& kind : kinds) {
    if (!kind.second.empty()) batches.push_back(std::move(kind.second));
  }
  return batches;
}

}  // namespace

std::vector<TensorStatistics> tensor_statistics(at::TensorList tensors) {
  const at::NoGradGuard no_grad;
  std::vector<TensorStatistics> all(tensors.size());
  for (const Indices& batch : batches_of(tensors)) {
    std::vector<at::Tensor> of_batch;
    for (const size_t i : batch) of_batch.push_back(readable(tensors[i]));
    const statistics::JobMemory memory(std::move(of_batch));
    run(memory);
    auto results = memory.results();
    for (size_t k = 0; k < batch.size(); ++k) all[batch[k]] = std::move(results[k]);
  }
  return all;
}

}  // namespace apex::kernels
