#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/rules/convert.h"
#include "kernels/rules/hd.h"

// Where a value is counted. Bins are the rows of a table, kParts next to each other: row 0 counts zeros (part 0), then there is
// a row for each exponent that the format has, and the last one counts Inf (part 0) and NaN (the others).
namespace apex::kernels::statistics {

constexpr int kParts = 4;  // of the values of one exponent, as in ExponentCounts

// Formats with the exponents of float32, and float64. kOneBelow: the exponent whose row would be row 0.
template <class Real>
struct Format;

template <>
struct Format<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kBias = 127, kOneBelow = -150, kRows = 279;
};

template <>
struct Format<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kBias = 1023, kOneBelow = -1075, kRows = 2100;
};

template <class Real>
constexpr int kBins = Format<Real>::kRows* kParts;

template <class Real>
constexpr typename Format<Real>::Bits kInfinity =
    typename Format<Real>::Bits{2 * Format<Real>::kBias + 1} << Format<Real>::kMantissa;

// Functions have a parameter that says which file they are for: those compiled for one instruction set must not share theirs.
struct AnyFile;

template <class Real, class File = AnyFile>
HD inline typename Format<Real>::Bits bits_of(Real value) {
  typename Format<Real>::Bits bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The bits of |value|.
template <class Real, class File = AnyFile>
HD inline typename Format<Real>::Bits magnitude_of(Real value) {
  return bits_of<Real, File>(value) & ~(typename Format<Real>::Bits{1} << (8 * sizeof(Real) - 1));
}

template <class Real, class File = AnyFile>
HD inline Real value_of(typename Format<Real>::Bits bits) {
  Real value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Subnormal values are integers times the smallest one: as a Real, the integer has the exponent at its usual place. Arithmetic
// on integers is no matter of a processor mode that takes subnormal values for 0. No branches: loops of this become vector
// code.
template <class Real, class File = AnyFile>
HD inline int bin_of(typename Format<Real>::Bits magnitude) {
  using Bits = typename Format<Real>::Bits;
  using Signed = std::make_signed_t<Bits>;
  constexpr int kMantissa = Format<Real>::kMantissa;
  constexpr Bits kOne = Bits{1} << kMantissa;
  const Bits integer = magnitude_of<Real, File>(static_cast<Real>(static_cast<Signed>(magnitude)));
  const Bits if_subnormal = Bits{0} - static_cast<Bits>(magnitude < kOne);
  const Bits normal = (integer & if_subnormal) | (magnitude & ~if_subnormal);
  // The integer 1 has row 1, and the smallest normal value the row behind all integers.
  const auto shift =
      static_cast<Signed>((static_cast<Bits>(1 - Format<Real>::kBias) & if_subnormal) | (kMantissa & ~if_subnormal));
  const auto row = static_cast<int>(static_cast<Signed>(normal >> kMantissa) + shift);
  const Bits fraction = normal & (kOne - 1);
  const int part = (fraction > 0) + (fraction >= kOne - (kOne >> 7)) + (fraction >= kOne - (kOne >> 10));
  return (row < 0 ? 0 : row) * kParts + part;
}

}  // namespace apex::kernels::statistics
