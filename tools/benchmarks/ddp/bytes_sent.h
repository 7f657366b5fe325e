#pragma once

#include <cstdint>

namespace bench::ddp {

/// Bytes that this process's open TCP connections have sent, as counted by the kernel: payload only, retransmissions included.
int64_t tcp_bytes_sent();

}  // namespace bench::ddp
