#pragma once

#include <cstring>

#include "kernels/cuda/table.h"
#include "kernels/rules/remainder.h"
#include "kernels/rules/rule.h"

// Loads and stores packs of adjacent elements: kPack (16 bytes of a 16-bit type) in updates, kSumPack in sums. An access to a
// Row branches on the list's dtype: all threads of a block take the same branch. For frequent mixes of dtypes a kernel has a
// second loop without branches, over a KnownRow. Loading and converting are separate, so that a caller can load all packs
// before it converts the first and waits for memory only once.
namespace apex::kernels::cuda {

// Elements [first, first + kWidth) of a row. Only elements [first + low, first + high) belong to the current part.
template <int kWidth>
struct Pack {
  int64_t first;
  int low, high;

  DEVICE_BODY bool whole() const { return low == 0 && high == kWidth; }
  DEVICE_BODY bool has(int i) const { return i >= low && i < high; }
};

template <int kWidth>
DEVICE_BODY int64_t pack_count(const Part& part) {
  return (part.size + part.row->shift + kWidth - 1) / kWidth;
}

// Pack i of a part. Packs before the first element, which the row's shift can make, and after the last one have no elements.
template <int kWidth>
DEVICE_BODY Pack<kWidth> pack_at(const Part& part, int64_t i) {
  const int64_t start = i * kWidth - part.row->shift;
  return {part.begin + start, start < 0 ? static_cast<int>(-start) : 0, static_cast<int>(smaller(kWidth, part.size - start))};
}

// A row whose lists are aligned, with dtypes that are known when a kernel is compiled: kFirst of list 0 and of the copies
// behind the kValues lists of a rule, kOthers of the rest.
template <Dtype kFirst, Dtype kOthers, int kValues>
struct KnownRow {
  void* data[kLists];

  DEVICE_BODY explicit KnownRow(const Row& row) { UNROLL for (int i = 0; i < kLists; ++i) data[i] = row.data[i]; }
  DEVICE_BODY static constexpr Dtype dtype(int list) { return list == 0 || list == kValues ? kFirst : kOthers; }
  DEVICE_BODY static constexpr bool is_aligned(int) { return true; }

  // Whether the row is one.
  DEVICE_BODY static bool matches(const Row& row) {
    bool same = row.shift == 0;
    UNROLL for (int i = 0; i < kLists; ++i) {
      if (i > kValues || (i == kValues && row.data[i] == nullptr)) continue;
      same = same && row.is_aligned(i) && row.dtypes[i] == dtype(i);
    }
    return same;
  }
};

// The same for bfloat16 gradients and parameters, with remainders of kBits behind the kValues lists of a rule and float32
// state.
template <int kBits, int kValues>
struct KnownSplitRow {
  void* data[kLists];

  DEVICE_BODY explicit KnownSplitRow(const Row& row) { UNROLL for (int i = 0; i < kLists; ++i) data[i] = row.data[i]; }
  DEVICE_BODY static constexpr Dtype dtype(int list) { return list < 2 ? Dtype::bfloat16 : Dtype::float32; }
  DEVICE_BODY static constexpr bool is_aligned(int) { return true; }
  DEVICE_BODY static constexpr int remainders() { return kBits; }

  DEVICE_BODY static bool matches(const Row& row) {
    bool same = row.shift == 0 && row.remainders() == kBits && row.is_aligned(kValues);
    UNROLL for (int i = 0; i < kValues; ++i) same = same && row.is_aligned(i) && row.dtypes[i] == dtype(i);
    return same;
  }
};

// Loads 2, 4, 8, or a multiple of 16 bytes from an aligned address. On a device it bypasses the first-level cache, since
// nothing is read twice.
template <int kBytes>
DEVICE_BODY void load_bytes(const void* from, uint32_t* words) {
#ifdef __CUDA_ARCH__
  if constexpr (kBytes == 2) {
    words[0] = __ldcg(static_cast<const unsigned short*>(from));
  } else if constexpr (kBytes == 4) {
    words[0] = __ldcg(static_cast<const unsigned*>(from));
  } else if constexpr (kBytes == 8) {
    const uint2 pair = __ldcg(static_cast<const uint2*>(from));
    words[0] = pair.x, words[1] = pair.y;
  } else {
    UNROLL for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 quad = __ldcg(static_cast<const uint4*>(from) + i);
      words[4 * i] = quad.x, words[4 * i + 1] = quad.y, words[4 * i + 2] = quad.z, words[4 * i + 3] = quad.w;
    }
  }
#else
  memcpy(words, from, kBytes);
#endif
}

template <int kBytes>
DEVICE_BODY void store_bytes(const uint32_t* words, void* to) {
#ifdef __CUDA_ARCH__
  if constexpr (kBytes == 4) {
    __stcg(static_cast<unsigned*>(to), words[0]);
  } else if constexpr (kBytes == 8) {
    __stcg(static_cast<uint2*>(to), make_uint2(words[0], words[1]));
  } else {
    UNROLL for (int i = 0; i < kBytes / 16; ++i) {
      __stcg(static_cast<uint4*>(to) + i, make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]));
    }
  }
#else
  memcpy(to, words, kBytes);
#endif
}

// The bits of a pack as it is stored, in any type that converts to Real without loss.
template <class Real, int kWidth>
struct Bits {
  alignas(kWidth * sizeof(Real) < 16 ? kWidth * sizeof(Real) : 16) uint32_t words[kWidth * sizeof(Real) / sizeof(uint32_t)];

  template <class Storage>
  DEVICE_BODY void load(const void* data, bool aligned, const Pack<kWidth>& pack) {
    const Storage* const from = static_cast<const Storage*>(data) + pack.first;
    if (aligned && pack.whole()) {
      load_bytes<kWidth* static_cast<int>(sizeof(Storage))>(from, words);
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

// Loads packs pack_of(0), pack_of(1), ... of list `list`. `lists` is a Row or a KnownRow. Here and in convert(), float64 rows
// occur only if Real is double.
template <class Real, int kWidth, int kCount, class Lists, class PackOf>
DEVICE_BODY void load(const Lists& lists, int list, const PackOf& pack_of, Bits<Real, kWidth> (&bits)[kCount]) {
  const void* const data = lists.data[list];
  const bool aligned = lists.is_aligned(list);
  const auto load_as = [&](auto storage) {
    UNROLL for (int j = 0; j < kCount; ++j) bits[j].template load<decltype(storage)>(data, aligned, pack_of(j));
  };
  switch (lists.dtype(list)) {
    case Dtype::half:
    case Dtype::bfloat16:
      return load_as(rules::Half());
    case Dtype::float32:
      return load_as(float());
    case Dtype::float64:
      if constexpr (sizeof(Real) == sizeof(double)) load_as(double());
  }
}

template <class Real, int kWidth>
DEVICE_BODY inline void convert(const Bits<Real, kWidth>& bits, Dtype dtype, Real (&values)[kWidth]) {
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

// The same for remainders, which list `list` holds.
template <int kWidth, int kCount, class Lists, class PackOf>
DEVICE_BODY void load_remainders(const Lists& lists, int list, const PackOf& pack_of, Bits<float, kWidth> (&bits)[kCount]) {
  const void* const data = lists.data[list];
  const bool aligned = lists.is_aligned(list);
  UNROLL for (int j = 0; j < kCount; ++j) {
    if (lists.remainders() == 16) {
      bits[j].template load<int16_t>(data, aligned, pack_of(j));
    } else {
      bits[j].template load<int8_t>(data, aligned, pack_of(j));
    }
  }
}

// The float32 values of bfloat16 parameters and their remainders.
template <class Remainder, int kWidth>
DEVICE_BODY inline void join_as(const Bits<float, kWidth>& params, const Bits<float, kWidth>& remainders,
                                float (&values)[kWidth]) {
  rules::BFloat16 rounded[kWidth];
  Remainder remainder[kWidth];
  memcpy(rounded, params.words, sizeof rounded);
  memcpy(remainder, remainders.words, sizeof remainder);
  UNROLL for (int i = 0; i < kWidth; ++i) values[i] = rules::join(rounded[i], remainder[i]);
}

template <int kWidth>
DEVICE_BODY inline void join(const Bits<float, kWidth>& params, const Bits<float, kWidth>& remainders, int bits,
                             float (&values)[kWidth]) {
  bits == 16 ? join_as<int16_t>(params, remainders, values) : join_as<int8_t>(params, remainders, values);
}

template <class Storage, int kWidth>
DEVICE_BODY inline void store_elements(const Storage (&stored)[kWidth], void* data, bool aligned, const Pack<kWidth>& pack) {
  Storage* const to = static_cast<Storage*>(data) + pack.first;
  if (aligned && pack.whole()) {
    uint32_t words[kWidth * sizeof(Storage) / sizeof(uint32_t)];
    memcpy(words, stored, sizeof stored);
    store_bytes<static_cast<int>(sizeof stored)>(words, to);
  } else {
    UNROLL for (int i = 0; i < kWidth; ++i) {
      if (pack.has(i)) to[i] = stored[i];
    }
  }
}

template <class Storage, class Real, int kWidth>
DEVICE_BODY inline void store_as(const Real (&values)[kWidth], void* data, bool aligned, const Pack<kWidth>& pack) {
  Storage stored[kWidth];
  UNROLL for (int i = 0; i < kWidth; ++i) stored[i] = rules::store<Storage>(values[i]);
  store_elements(stored, data, aligned, pack);
}

// Stores values as bfloat16 to list `list`, and their remainders to list `behind`.
template <class Remainder, int kWidth, class Lists>
DEVICE_BODY inline void split_as(const float (&values)[kWidth], const Lists& lists, int list, int behind,
                                 const Pack<kWidth>& pack) {
  rules::BFloat16 rounded[kWidth];
  Remainder remainders[kWidth];
  UNROLL for (int i = 0; i < kWidth; ++i) {
    const auto parts = rules::split<Remainder>(values[i]);
    rounded[i] = parts.rounded;
    remainders[i] = parts.remainder;
  }
  store_elements(rounded, lists.data[list], lists.is_aligned(list), pack);
  store_elements(remainders, lists.data[behind], lists.is_aligned(behind), pack);
}

template <int kWidth, class Lists>
DEVICE_BODY inline void split(const float (&values)[kWidth], const Lists& lists, int list, int behind,
                              const Pack<kWidth>& pack) {
  lists.remainders() == 16 ? split_as<int16_t>(values, lists, list, behind, pack)
                           : split_as<int8_t>(values, lists, list, behind, pack);
}

template <class Real, int kWidth, class Lists>
DEVICE_BODY inline void store(const Real (&values)[kWidth], const Lists& lists, int list, const Pack<kWidth>& pack) {
  void* const data = lists.data[list];
  const bool aligned = lists.is_aligned(list);
  switch (lists.dtype(list)) {
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
