#include <c10/util/Exception.h>

#include <apex_cpp/parallel/processes/backends.h>

#ifdef APEX_CPP_HAS_NCCL
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <apex_cpp/parallel/processes/environment.h>

namespace apex::parallel::detail {
namespace {

// The processes of one machine take its GPUs in turn.
void take_gpu(int rank) {
  const int gpus = c10::cuda::device_count();
  const int gpu = local_rank(rank % gpus);
  TORCH_CHECK(gpu < gpus, "init_process_group (rank ", rank, "): LOCAL_RANK is ", gpu, ", but this machine has ", gpus,
              " GPUs: start at most one process for each, or use the backend gloo");
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(gpu));
}

}  // namespace

bool has_nccl() { return at::cuda::is_available(); }

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlace& place) {
  TORCH_CHECK(has_nccl(), "init_process_group (rank ", place.rank,
              "): the backend nccl needs a GPU, and there is none: use gloo");
  take_gpu(place.rank);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = place.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(place.store, place.rank, place.size, std::move(options));
}

}  // namespace apex::parallel::detail
#else
namespace apex::parallel::detail {

bool has_nccl() { return false; }

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlace&) {
  TORCH_CHECK(false, "init_process_group: the backend nccl needs a build with CUDA (APEX_CPP_CUDA=ON) and nccl.h: use gloo");
}

}  // namespace apex::parallel::detail
#endif
