#include <c10/util/Exception.h>

#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <apex_cpp/parallel/processes/backends.h>

#ifdef USE_C10D_GLOO
// LibTorch ships this header without the Gloo headers that it includes; tools/cmake/ApexProcesses.cmake substitutes
// gloo_declarations.h. Only this file includes it.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace apex::parallel::detail {
namespace {

// As in PyTorch, GLOO_SOCKET_IFNAME names interfaces, separated by commas, and counts as absent if it is empty.
std::vector<std::shared_ptr<gloo::transport::Device>> devices_at(const std::string& address) {
  using Gloo = c10d::ProcessGroupGloo;
  std::vector<std::shared_ptr<gloo::transport::Device>> devices;
  const char* const named = std::getenv("GLOO_SOCKET_IFNAME");
  std::istringstream interfaces(named ? named : "");
  for (std::string each; std::getline(interfaces, each, ',');) {
    if (!each.empty()) devices.push_back(Gloo::createDeviceForInterface(each));
  }
  if (devices.empty())
    devices.push_back(address.empty() ? Gloo::createDefaultDevice() : Gloo::createDeviceForHostname(address));
  return devices;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendPlace& place) {
  auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
  options->devices = devices_at(place.address);
  options->threads = 2 * static_cast<int>(options->devices.size());
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
