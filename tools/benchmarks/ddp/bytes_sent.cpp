#include "bytes_sent.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>

namespace bench::ddp {
namespace {

// Empty if `file` is not a TCP connection.
int64_t bytes_sent_by(int file) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? static_cast<int64_t>(info.tcpi_bytes_sent) : 0;
}

}  // namespace

int64_t tcp_bytes_sent() {
  int64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd"))
    bytes += bytes_sent_by(std::stoi(file.path().filename()));
  return bytes;
}

}  // namespace bench::ddp
