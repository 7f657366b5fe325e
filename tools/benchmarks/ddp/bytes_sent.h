#pragma once

#include <cstdint>

namespace bench::ddp {

/// What the TCP connections that this process holds have sent so far, as the kernel counts it: in bytes, without the headers
/// of packets, and twice where a packet was sent again.
int64_t tcp_bytes_sent();

}  // namespace bench::ddp
