#include <apex_cpp/parallel/processes/backends.h>

#include <c10/util/Exception.h>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>

namespace apex::parallel::detail {

std::string text_of(const BackendWish& wish) { return wish.backend + ' ' + wish.gpu; }

BackendWish wish_of(const std::string& text) {
  const auto space = text.find(' ');
  return {text.substr(0, space), text.substr(space + 1)};
}

std::string why_without_nccl(const std::vector<BackendWish>& wishes) {
  std::map<std::string, size_t> owners;
  for (size_t rank = 0; rank < wishes.size(); ++rank) {
    const auto& gpu = wishes[rank].gpu;
    if (gpu.empty()) return "rank " + std::to_string(rank) + " has no GPU";
    const auto [owner, is_first] = owners.emplace(gpu, rank);
    if (!is_first) return "ranks " + std::to_string(owner->second) + " and " + std::to_string(rank) + " have the same GPU";
  }
  return "";
}

std::string choose_backend(const std::vector<BackendWish>& wishes) {
  size_t told = wishes.size();  // the first rank that names a backend
  for (size_t rank = 0; rank < wishes.size(); ++rank) {
    const auto& backend = wishes[rank].backend;
    if (backend.empty()) continue;
    if (told == wishes.size()) told = rank;
    TORCH_CHECK(backend == wishes[told].backend, "init_process_group: rank ", rank, " was given the backend '", backend,
                "', but rank ", told, " '", wishes[told].backend, "': give all ranks the same backend");
  }
  if (told < wishes.size()) return wishes[told].backend;
  return why_without_nccl(wishes).empty() ? "cpu:gloo,cuda:nccl" : "gloo";
}

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  constexpr const char* kAnyPort = "9";
  if (getaddrinfo(host.c_str(), kAnyPort, &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

std::string as_text(const sockaddr_storage& address, socklen_t size) {
  char text[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

// Connecting a datagram socket sends nothing: the kernel only chooses the route.
std::string own_end(const addrinfo& towards) {
  const int connection = ::socket(towards.ai_family, SOCK_DGRAM, 0);
  if (connection < 0) return "";
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  const bool known = ::connect(connection, towards.ai_addr, towards.ai_addrlen) == 0 &&
                     ::getsockname(connection, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  ::close(connection);
  return known ? as_text(own, size) : "";
}

}  // namespace

std::string address_towards(const std::string& host) {
  const auto addresses = resolve(host);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next)
    if (auto own = own_end(*address); !own.empty()) return own;
  return "";
}

}  // namespace apex::parallel::detail
