#pragma once

#include "kernels/statistics/bins.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <vector>

namespace apex::kernels {

namespace statistics::cuda {

// Enqueues the job on the current stream of the device, for tensors of that dtype.
void run(at::ScalarType dtype, c10::Device device, const Job& job);

}  // namespace statistics::cuda

// Statistics of tensors, in one pass over their memory.
//
// Dtypes: float16, bfloat16, float32 and float64. Tensors may have any shape and size, including empty; one that is not dense
// in memory is copied first. Devices: the CPU, and CUDA in builds with CUDA; tensors on other devices are copied to the CPU.
// The results are host values, so the call waits for the device. Counts are exact. Sums are float64, in an order that depends
// on the shape alone (bins.h), so they have the same bits at any number of threads, on CPU and CUDA. The caller checks dtypes
// and layouts.

// Counts of the finite values x != 0 with 2^exponent <= |x| < 2^(exponent + 1), in four ranges: exactly 2^exponent; up to
// 2^exponent * (2 - 2^-7), from where bfloat16 rounds up to the next power of two; up to 2^exponent * (2 - 2^-10), from where
// float16 does; and the rest.
struct ExponentCounts {
  int exponent;
  std::array<int64_t, 4> parts;
};

// Sums and the largest magnitude are over the finite values only.
struct TensorStatistics {
  int64_t zeros = 0, inf = 0, nan = 0;
  double sum = 0, sum_of_squares = 0, abs_max = 0;
  std::vector<ExponentCounts> exponents;  // ascending; only exponents that occur
};

// One result per tensor.
std::vector<TensorStatistics> tensor_statistics(at::TensorList tensors);

namespace statistics {

// A job and its memory, on the device of the tensors, which must be dense and share one dtype and device.
class JobMemory {
 public:
  explicit JobMemory(std::vector<at::Tensor> tensors);

  at::ScalarType dtype() const { return tensors_.front().scalar_type(); }
  c10::Device device() const { return tensors_.front().device(); }
  const Job& job() const { return job_; }
  /// The results, one per tensor. Waits for the device.
  std::vector<TensorStatistics> results() const;

 private:
  std::vector<at::Tensor> tensors_;
  at::Tensor rows_, sums_, counts_;
  Job job_{};
};

}  // namespace statistics
}  // namespace apex::kernels
