#include <apex_cpp/amp/checkpoint/crc32c.h>

#include <array>
#include <cstring>

namespace apex::amp::detail {
namespace {

using Table = std::array<uint32_t, 256>;

/// table[b]: what byte b does to the remainder.
constexpr Table make_table() {
  constexpr uint32_t kPolynomial = 0x82F63B78;  // lowest bit first
  Table table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ (remainder & 1 ? kPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}

constexpr Table kTable = make_table();

uint32_t add_bytes(uint32_t state, const unsigned char* from, size_t bytes) {
  for (; bytes > 0; --bytes, ++from) state = (state >> 8) ^ kTable[(state ^ *from) & 0xFF];
  return state;
}

#ifdef __x86_64__
// The processor knows this very polynomial, and is ten times faster.
__attribute__((target("sse4.2"))) uint32_t add_by_instruction(uint32_t state, const unsigned char* from, size_t bytes) {
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), from += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, from, sizeof word);
    state = static_cast<uint32_t>(__builtin_ia32_crc32di(state, word));
  }
  return add_bytes(state, from, bytes);
}

bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#else
uint32_t add_by_instruction(uint32_t state, const unsigned char* from, size_t bytes) { return add_bytes(state, from, bytes); }

bool has_instruction() { return false; }
#endif

}  // namespace

void Crc32c::add(const void* data, size_t bytes) {
  static const bool fast = has_instruction();
  const auto* from = static_cast<const unsigned char*>(data);
  state_ = fast ? add_by_instruction(state_, from, bytes) : add_bytes(state_, from, bytes);
}

}  // namespace apex::amp::detail
