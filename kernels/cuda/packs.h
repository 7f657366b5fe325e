#pragma once

#include <cstring>

#include "kernels/cuda/table.h"
#include "kernels/rules/rule.h"

// Loads and stores packs of kWidth elements. Each access branches on the list's dtype: all threads of a block take the same
// branch, and a kernel is compiled once, not once per mix of dtypes. Loading and converting are separate, so that a caller can
// load all packs before it converts the first and waits for memory only once.
namespace apex::kernels::cuda {

// Elements [first, first + kWidth) of a row. Only elements [first + low, first + high) belong to the current part.
struct Pack {
  int64_t first;
  int low, high;

  DEVICE_BODY bool whole() const { return low == 0 && high == kWidth; }
  DEVICE_BODY bool has(int i) const { return i >= low && i < high; }
};

DEVICE_BODY inline int64_t pack_count(const Part& part) { return (part.size + part.row->shift + kWidth - 1) / kWidth; }

// Pack i of a part. Packs after the last one have no elements.
DEVICE_BODY inline Pack pack_at(const Part& part, int64_t i) {
  const int64_t start = i * kWidth - part.row->shift;
  return {part.begin + start, start < 0 ? static_cast<int>(-start) : 0, static_cast<int>(smaller(kWidth, part.size - start))};
}

DEVICE_BODY inline bool is_aligned(const Row& row, int list) { return (row.aligned >> list & 1) != 0; }

template <class Storage>
constexpr int kPerAccess = 16 / static_cast<int>(sizeof(Storage));

// Loads 16 bytes from an aligned address. On a device it bypasses the first-level cache, since nothing is read twice.
DEVICE_BODY inline void load_16_bytes(const void* from, uint32_t* words) {
#ifdef __CUDA_ARCH__
  const uint4 quad = __ldcg(static_cast<const uint4*>(from));
  words[0] = quad.x, words[1] = quad.y, words[2] = quad.z, words[3] = quad.w;
#else
  memcpy(words, from, 16);
#endif
}

DEVICE_BODY inline void store_16_bytes(const uint32_t* words, void* to) {
#ifdef __CUDA_ARCH__
  __stcg(static_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
#else
  memcpy(to, words, 16);
#endif
}

// The bits of a pack as it is stored, in any type that converts to Real without loss.
template <class Real>
struct Bits {
  alignas(16) uint32_t words[kWidth * sizeof(Real) / sizeof(uint32_t)];

  template <class Storage>
  DEVICE_BODY void load(const void* data, bool aligned, const Pack& pack) {
    const Storage* const from = static_cast<const Storage*>(data) + pack.first;
    if (aligned && pack.whole()) {
      UNROLL for (int i = 0; i < kWidth / kPerAccess<Storage>; ++i)
          load_16_bytes(from + i * kPerAccess<Storage>, words + 4 * i);
    } else {
      Storage stored[kWidth];
      UNROLL for (int i = 0; i < kWidth; ++i) stored[i] = pack.has(i) ? from[i] : Storage();
      memcpy(words, stored, sizeof stored);
    }
  }

  template <class Storage>
  DEVICE_BODY void convert(Real (&values)[kWidth]) const {
    Storage stored[kWidth];
    memcpy(stored, words, sizeof stored);
    UNROLL for (int i = 0; i < kWidth; ++i) values[i] = rules::load<Real>(stored[i]);
  }
};

// load() and convert(): float64 rows occur only if Real is double.
template <class Real>
DEVICE_BODY inline void load(const Row& row, int list, const Pack& pack, Bits<Real>& bits) {
  const void* const data = row.data[list];
  const bool aligned = is_aligned(row, list);
  switch (row.dtypes[list]) {
    case Dtype::half:
    case Dtype::bfloat16:
      return bits.template load<rules::Half>(data, aligned, pack);
    case Dtype::float32:
      return bits.template load<float>(data, aligned, pack);
    case Dtype::float64:
      if constexpr (sizeof(Real) == sizeof(double)) bits.template load<double>(data, aligned, pack);
  }
}

template <class Real>
DEVICE_BODY inline void convert(const Bits<Real>& bits, Dtype dtype, Real (&values)[kWidth]) {
  switch (dtype) {
    case Dtype::half:
      return bits.template convert<rules::Half>(values);
    case Dtype::bfloat16:
      return bits.template convert<rules::BFloat16>(values);
    case Dtype::float32:
      return bits.template convert<float>(values);
    case Dtype::float64:
      if constexpr (sizeof(Real) == sizeof(double)) bits.template convert<double>(values);
  }
}

template <class Storage, class Real>
DEVICE_BODY inline void store_as(const Real (&values)[kWidth], void* data, bool aligned, const Pack& pack) {
  Storage* const to = static_cast<Storage*>(data) + pack.first;
  Storage stored[kWidth];
  UNROLL for (int i = 0; i < kWidth; ++i) stored[i] = rules::store<Storage>(values[i]);
  if (aligned && pack.whole()) {
    uint32_t words[kWidth / kPerAccess<Storage> * 4];
    memcpy(words, stored, sizeof stored);
    UNROLL for (int i = 0; i < kWidth / kPerAccess<Storage>; ++i) store_16_bytes(words + 4 * i, to + i * kPerAccess<Storage>);
  } else {
    UNROLL for (int i = 0; i < kWidth; ++i) {
      if (pack.has(i)) to[i] = stored[i];
    }
  }
}

template <class Real>
DEVICE_BODY inline void store(const Real (&values)[kWidth], const Row& row, int list, const Pack& pack) {
  void* const data = row.data[list];
  const bool aligned = is_aligned(row, list);
  switch (row.dtypes[list]) {
    case Dtype::half:
      return store_as<rules::Half>(values, data, aligned, pack);
    case Dtype::bfloat16:
      return store_as<rules::BFloat16>(values, data, aligned, pack);
    case Dtype::float32:
      return store_as<float>(values, data, aligned, pack);
    case Dtype::float64:
      if constexpr (sizeof(Real) == sizeof(double)) store_as<double>(values, data, aligned, pack);
  }
}

}  // namespace apex::kernels::cuda
