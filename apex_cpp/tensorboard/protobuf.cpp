#include <apex_cpp/tensorboard/protobuf.h>

#include <cstring>

namespace apex::detail {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class Unsigned>
std::string bytes_of(Unsigned value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

template <class Unsigned, class Number>
Unsigned bits_of(Number number) {
  Unsigned bits = 0;
  static_assert(sizeof bits == sizeof number);
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

}  // namespace

std::string little_endian(uint32_t value) { return bytes_of(value); }
std::string little_endian(uint64_t value) { return bytes_of(value); }

void ProtobufMessage::add_varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
  bytes_ += static_cast<char>(value);
}

void ProtobufMessage::add_key(int field, int wire_type) { add_varint(static_cast<uint64_t>(field << 3 | wire_type)); }

ProtobufMessage& ProtobufMessage::add(int field, int64_t value) {
  add_key(field, kVarint);
  add_varint(static_cast<uint64_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::add(int field, float value) {
  add_key(field, kFixed32);
  bytes_ += little_endian(bits_of<uint32_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::add(int field, double value) {
  add_key(field, kFixed64);
  bytes_ += little_endian(bits_of<uint64_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::add(int field, const std::vector<double>& values) {
  std::string packed;
  for (const double value : values) packed += little_endian(bits_of<uint64_t>(value));
  return add(field, std::string_view(packed));
}

ProtobufMessage& ProtobufMessage::add(int field, std::string_view bytes) {
  add_key(field, kBytes);
  add_varint(bytes.size());
  bytes_ += bytes;
  return *this;
}

}  // namespace apex::detail
