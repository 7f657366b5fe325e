#include <apex_cpp/parallel/processes/environment.h>

#include <apex_cpp/parallel/processes/backends.h>

#include <c10/util/Exception.h>
#include <netdb.h>
#include <netinet/in.h>

#include <sys/socket.h>
#include <unistd.h>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

namespace apex::parallel::detail {
namespace {

constexpr const char* kRemedy =
    "start the program by `torchrun --no-python --nproc_per_node=N program`, set MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE "
    "yourself, or give ProcessGroupOptions an init_method, a rank and a world_size";

bool parse(const std::string& text, int& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

}  // namespace

std::string environment_text(const char* name, const std::string& rank) {
  const char* text = std::getenv(name);
  TORCH_CHECK(text && *text, "init_process_group (rank ", rank, "): the environment variable ", name, " is not set: ", kRemedy);
  return text;
}

int environment_number(const char* name, const std::string& rank, int low, int high) {
  const auto text = environment_text(name, rank);
  int number = 0;
  TORCH_CHECK(parse(text, number) && low <= number && number <= high, "init_process_group (rank ", rank,
              "): the environment variable ", name, " is '", text, "', not a number from ", low, " to ", high, ": ", kRemedy);
  return number;
}

bool agent_serves_the_store() {
  const char* text = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return text && std::strcmp(text, "True") == 0;
}

int local_rank(int otherwise) {
  if (!std::getenv("LOCAL_RANK")) return otherwise;
  return environment_number("LOCAL_RANK", "?", 0, std::numeric_limits<int>::max());
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
