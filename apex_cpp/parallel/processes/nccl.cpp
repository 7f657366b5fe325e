#include <c10/util/Exception.h>

#include <apex_cpp/parallel/processes/backends.h>

#ifdef APEX_CPP_HAS_NCCL
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <iomanip>
#include <sstream>

#include <apex_cpp/parallel/processes/rendezvous.h>

namespace apex::parallel::detail {
namespace {

// A launcher may make only one GPU visible to each process.
int gpu_of(int rank) { return c10::cuda::device_count() == 1 ? 0 : local_rank(rank); }

std::string hexadecimal(const cudaUUID_t& id) {
  std::ostringstream text;
  text << std::hex << std::setfill('0');
  for (const char byte : id.bytes) text << std::setw(2) << static_cast<int>(static_cast<unsigned char>(byte));
  return text.str();
}

}  // namespace

std::string name_of_gpu(int rank) {
  const int gpu = gpu_of(rank);
  if (gpu >= c10::cuda::device_count()) return "";
  return hexadecimal(at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(gpu))->uuid);
}

void take_gpu(int rank) {
  const int gpus = c10::cuda::device_count();
  TORCH_CHECK(gpus > 0, "init_process_group (rank ", rank, "): the backend nccl needs a GPU, and there is none: use gloo");
  const int gpu = gpu_of(rank);
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

std::string name_of_gpu(int) { return ""; }

void take_gpu(int) {}

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlace&) {
  TORCH_CHECK(false, "init_process_group: the backend nccl needs a build with CUDA (APEX_CPP_CUDA=ON) and nccl.h: use gloo");
}

}  // namespace apex::parallel::detail
#endif
