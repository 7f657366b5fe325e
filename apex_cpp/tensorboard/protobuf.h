#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace apex::detail {

/// A protobuf message as bytes, field by field (https://protobuf.dev/programming-guides/encoding). Hand-written because
/// libtorch exports an old protobuf's symbols, beside which a program cannot have another, and what is written here are a few
/// fields of three kinds.
class ProtobufMessage {
 public:
  ProtobufMessage& add(int field, int64_t value);
  ProtobufMessage& add(int field, float value);
  ProtobufMessage& add(int field, double value);
  /// `packed`, as repeated numbers are.
  ProtobufMessage& add(int field, const std::vector<double>& values);
  ProtobufMessage& add(int field, std::string_view bytes);
  ProtobufMessage& add(int field, const ProtobufMessage& message) { return add(field, message.bytes()); }

  std::string_view bytes() const { return bytes_; }

 private:
  void add_varint(uint64_t value);
  void add_key(int field, int wire_type);

  std::string bytes_;
};

/// The bytes of a number in the order of little-endian machines, which protobuf and TFRecord files have.
std::string little_endian(uint32_t value);
std::string little_endian(uint64_t value);

}  // namespace apex::detail
