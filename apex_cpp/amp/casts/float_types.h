#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace apex::amp::detail {

/// A set of floating-point types.
class FloatTypes {
 public:
  constexpr FloatTypes() = default;
  /// The type alone; nothing for a type that the engine leaves alone (integers, complex numbers, 8-bit floats).
  constexpr explicit FloatTypes(c10::ScalarType type) : bits_(bit_of(type)) {}

  static constexpr FloatTypes all() { return FloatTypes(uint8_t{15}); }
  constexpr bool has(c10::ScalarType type) const { return (bits_ & bit_of(type)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool is_mix() const { return (bits_ & (bits_ - 1)) != 0; }
  constexpr FloatTypes without(FloatTypes other) const { return FloatTypes(static_cast<uint8_t>(bits_ & ~other.bits_)); }
  constexpr FloatTypes operator|(FloatTypes other) const { return FloatTypes(static_cast<uint8_t>(bits_ | other.bits_)); }
  constexpr FloatTypes& operator|=(FloatTypes other) { return *this = *this | other; }
  constexpr bool operator==(FloatTypes other) const { return bits_ == other.bits_; }

 private:
  constexpr explicit FloatTypes(uint8_t bits) : bits_(bits) {}
  static constexpr uint8_t bit_of(c10::ScalarType type) {
    switch (type) {
      case c10::ScalarType::Half:
        return 1;
      case c10::ScalarType::BFloat16:
        return 2;
      case c10::ScalarType::Float:
        return 4;
      case c10::ScalarType::Double:
        return 8;
      default:
        return 0;
    }
  }
  uint8_t bits_ = 0;
};

inline constexpr FloatTypes kLowTypes = FloatTypes(c10::kHalf) | FloatTypes(c10::kBFloat16);

/// The type of a floating tensor; nothing for an undefined one, and for a C++ number in a tensor's guise, which stays as it is.
inline FloatTypes float_type_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return {};
  return FloatTypes(tensor.scalar_type());
}

}  // namespace apex::amp::detail
