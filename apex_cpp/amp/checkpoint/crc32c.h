#pragma once

#include <cstddef>
#include <cstdint>

namespace apex::amp::detail {

/// CRC-32C (Castagnoli's polynomial) of bytes that come in pieces: finds every change of up to 32 adjacent bits, and others
/// with a chance of 1 in 2^32 to miss.
class Crc32c {
 public:
  void add(const void* data, size_t bytes);
  uint32_t value() const { return ~state_; }

 private:
  uint32_t state_ = ~uint32_t{0};
};

}  // namespace apex::amp::detail
