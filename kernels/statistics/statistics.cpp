#include "kernels/statistics/statistics.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <tuple>
#include <utility>

#include "kernels/statistics/cpu/driver.h"
#include "kernels/statistics/job.h"
#ifdef APEX_CPP_HAS_CUDA
#include "kernels/statistics/cuda/driver.h"
#endif

namespace apex::kernels {
namespace {

// Tables of bins take 9 KB a tensor (float64: 67 KB).
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

// Where there are kernels, with elements that fill a piece of memory, in whatever order.
at::Tensor readable(const at::Tensor& tensor) {
  const bool stays = tensor.is_cpu() || (tensor.is_cuda() && kHasCuda);
  const at::Tensor plain = (stays ? tensor : tensor.cpu()).detach().resolve_neg();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

// Indices of the tensors of one device and dtype, at most kMostTensors.
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
