#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include <apex_cpp/parallel/processes/backends.h>

namespace apex::parallel::detail {
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

// Connecting a datagram socket sends nothing: the kernel only chooses the way.
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
