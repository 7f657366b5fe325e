#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace apex::test {

/// A safetensors file made of the given parts, valid or not.
inline std::string raw_safetensors(uint64_t length, const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i));
  return file + header + data;
}
inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  return raw_safetensors(header.size(), header, data);
}

/// The header of a valid file.
inline std::string header_of(const std::string& file) {
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= uint64_t{static_cast<unsigned char>(file[static_cast<size_t>(i)])} << (8 * i);
  return file.substr(8, length);
}

/// Every dtype that both the format and torch have.
inline std::vector<c10::ScalarType> all_safetensors_dtypes() {
  using Type = c10::ScalarType;
  return {Type::Bool,
          Type::Byte,
          Type::Char,
          Type::Short,
          Type::UInt16,
          Type::Int,
          Type::UInt32,
          Type::Long,
          Type::UInt64,
          Type::Half,
          Type::BFloat16,
          Type::Float,
          Type::Double,
          Type::ComplexFloat,
          Type::Float8_e5m2,
          Type::Float8_e4m3fn,
          Type::Float8_e5m2fnuz,
          Type::Float8_e4m3fnuz,
          Type::Float8_e8m0fnu,
          Type::Float4_e2m1fn_x2};
}

}  // namespace apex::test
