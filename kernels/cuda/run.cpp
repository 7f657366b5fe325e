#include "kernels/cuda/run.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/launch.h"

namespace apex::kernels::cuda {

bool handles(c10::Device device) { return device.is_cuda(); }

template <class Op>
void run_update(const Call& call, const Op& op) {
  const c10::cuda::CUDAGuard guard(call.device);
  const auto stream = c10::cuda::getCurrentCUDAStream(call.device.index());
  C10_CUDA_CHECK(launch_updates(table_for_launch(call.plan, stream, op.finishes()), op, stream.stream()));
}

template <class Op>
Table run_sum(const Call& call, const Op& op) {
  const c10::cuda::CUDAGuard guard(call.device);
  const auto stream = c10::cuda::getCurrentCUDAStream(call.device.index());
  const Table table = table_for_launch(call.plan, stream, /*with_scratch=*/true);
  C10_CUDA_CHECK(launch_sums(table, op, stream.stream()));
  return table;
}

void run_update_scale(c10::Device device, const rules::ScaleUpdate& update, const LossScaleAddresses& addresses) {
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(launch_update_scale(update, addresses, c10::cuda::getCurrentCUDAStream(device.index()).stream()));
}

APEX_CPP_DEFINE_RUNS

}  // namespace apex::kernels::cuda
