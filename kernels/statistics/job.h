#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/statistics/order.h"
#include "kernels/statistics/statistics.h"

namespace apex::kernels::statistics {

// A job and its memory, on the device of the tensors: dense ones of one dtype and device.
class JobMemory {
 public:
  explicit JobMemory(std::vector<at::Tensor> tensors);

  at::ScalarType dtype() const { return tensors_.front().scalar_type(); }
  c10::Device device() const { return tensors_.front().device(); }
  const Job& job() const { return job_; }
  /// What the job found, tensor by tensor. Waits for the device.
  std::vector<TensorStatistics> results() const;

 private:
  std::vector<at::Tensor> tensors_;
  at::Tensor rows_, sums_, counts_;
  Job job_{};
};

}  // namespace apex::kernels::statistics
