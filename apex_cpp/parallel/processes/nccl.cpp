#include <c10/util/Exception.h>

#include <apex_cpp/parallel/processes/backends.h>

#ifdef APEX_CPP_HAS_NCCL
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <apex_cpp/parallel/processes/environment.h>

namespace apex::parallel::detail {
bool has_nccl(int rank) { return at::cuda::is_available() && local_rank(rank) < c10::cuda::device_count(); }

void take_gpu(int rank) {
  const int gpus = c10::cuda::device_count();
  TORCH_CHECK(gpus > 0, "init_process_group (rank ", rank, "): the backend nccl needs a GPU, and there is none: use gloo");
  const int gpu = gpus == 1 ? 0 : local_rank(rank);  // a launcher may show each process its own GPU alone
  TORCH_CHECK(gpu < gpus, "init_process_group (rank ", rank, "): LOCAL_RANK is ", gpu, ", but this machine has ", gpus,
              " GPUs: start at most one process for each, or use the backend gloo");
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(gpu));
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlace& place) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = place.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(place.store, place.rank, place.size, std::move(options));
}

}  // namespace apex::parallel::detail
#else
namespace apex::parallel::detail {

bool has_nccl(int) { return false; }

void take_gpu(int) {}

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlace&) {
  TORCH_CHECK(false, "init_process_group: the backend nccl needs a build with CUDA (APEX_CPP_CUDA=ON) and nccl.h: use gloo");
}

}  // namespace apex::parallel::detail
#endif
