#include <c10/util/Exception.h>

#include <cstdlib>
#include <memory>

#include <apex_cpp/parallel/processes/backends.h>

#ifdef USE_C10D_GLOO
// LibTorch ships this header without the Gloo headers that it includes; tools/cmake/ApexProcesses.cmake substitutes
// gloo_declarations.h. Only this file includes it.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace apex::parallel::detail {
namespace {

std::shared_ptr<gloo::transport::Device> device_at(const std::string& address) {
  using Gloo = c10d::ProcessGroupGloo;
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) return Gloo::createDeviceForInterface(interface);
  return address.empty() ? Gloo::createDefaultDevice() : Gloo::createDeviceForHostname(address);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendPlace& place) {
  auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
  options->devices.push_back(device_at(place.address));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(place.store, place.rank, place.size, std::move(options));
}

bool is_of_gloo(const c10d::Work& work) { return dynamic_cast<const c10d::ProcessGroupGloo::AsyncWork*>(&work) != nullptr; }

}  // namespace apex::parallel::detail
#else
namespace apex::parallel::detail {
c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendPlace&) {
  TORCH_CHECK(false, "init_process_group: this LibTorch was built without Gloo: use the backend nccl, or PyTorch's own builds");
}

bool is_of_gloo(const c10d::Work&) { return false; }
}  // namespace apex::parallel::detail
#endif
