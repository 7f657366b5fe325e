#include <apex_cpp/amp/checkpoint/crc32c.h>

#include <array>
#include <cstring>

namespace apex::amp::detail {
namespace {

constexpr size_t kStep = 8;
using Tables = std::array<std::array<uint32_t, 256>, kStep>;

/// tables[k][b]: what byte b does to the remainder when k more bytes follow it.
constexpr Tables make_tables() {
  constexpr uint32_t kPolynomial = 0x82F63B78;  // lowest bit first
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ (remainder & 1 ? kPolynomial : 0);
    tables[0][byte] = remainder;
  }
  for (size_t k = 1; k < kStep; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

void Crc32c::add(const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  // Eight bytes at a time: their look-ups do not wait for each other.
  for (; bytes >= kStep; bytes -= kStep, from += kStep) {
    uint64_t word = 0;
    std::memcpy(&word, from, kStep);
    word ^= state_;
    state_ = 0;
    for (size_t i = 0; i < kStep; ++i) state_ ^= kTables[kStep - 1 - i][(word >> (8 * i)) & 0xFF];
  }
  for (; bytes > 0; --bytes, ++from) state_ = (state_ >> 8) ^ kTables[0][(state_ ^ *from) & 0xFF];
}

}  // namespace apex::amp::detail
