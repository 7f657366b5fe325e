#pragma once

#include <cstring>

#include "kernels/normalization/formulas.h"
#include "kernels/rules/arithmetic.h"

// Memory access of the kernel bodies: kPair adjacent elements at a time, kStrips times. The dtype is looked up once for all of
// them, so each body is compiled once instead of once per mix of dtypes, and many loads are in flight together. This path needs
// tensors whose pairs can be accessed with one instruction. Other tensors use a loop over strips, which is slower but compiles
// to far less code.
namespace apex::kernels::normalization::cuda {

enum class Storage : int { half, bfloat16, float32, float64 };

// A tensor's memory. `by_pairs`: at multiples of kPair from each row's start, kPair elements can be accessed at once.
struct Source {
  const void* data;  // null if the tensor is absent
  Storage storage;
  bool by_pairs;
};

struct Target {
  void* data;
  Storage storage;
  bool by_pairs;
};

// Up to kStrips pairs: adjacent ones of a row, or the same columns of as many rows.
struct Walk {
  int64_t first;    // element index of the first pair
  int64_t stride;   // between pairs, in elements
  int64_t column;   // of the first pair
  int left;         // columns from the first pair to the end of the row
  int column_step;  // between pairs
  int count;        // number of pairs

  // Number of valid elements in pair i.
  DEVICE_BODY int valid(int i) const {
    if (i >= count) return 0;
    const int here = left - i * column_step;
    return here >= kPair ? kPair : here > 0 ? here : 0;
  }
  DEVICE_BODY int64_t at(int i) const { return first + i * stride; }
};

// The columns from `column` to the end of a row, or kSegment if they are more, which no walk reaches.
DEVICE_BODY inline int columns_left(int64_t columns, int64_t column) {
  const int64_t left = columns - column;
  return left < kSegment ? static_cast<int>(left) : kSegment;
}

template <class Element>
struct alignas(kPair * sizeof(Element) < 16 ? kPair * sizeof(Element) : 16) Pair {
  Element elements[kPair];
};

template <class Real>
struct Strips {
  Real values[kStrips][kPair];
};

// Calls visit(Element()) with the element type: double if Real is double, otherwise half, bfloat16 or float.
template <class Real, class Visit>
DEVICE_BODY inline void with_element(Storage storage, const Visit& visit) {
  if constexpr (sizeof(Real) == sizeof(double)) {
    visit(double());
  } else if (storage == Storage::half) {
    visit(rules::Half());
  } else if (storage == Storage::bfloat16) {
    visit(rules::BFloat16());
  } else {
    visit(float());
  }
}

template <class Element, class Real>
DEVICE_BODY inline void load_pairs(const Element* data, const Walk& walk, Strips<Real>& strips) {
  Pair<Element> pairs[kStrips];
  UNROLL for (int i = 0; i < kStrips; ++i) {
    pairs[i] = Pair<Element>{};
    if (walk.valid(i) == 0) continue;
#ifdef __CUDA_ARCH__
    pairs[i] = *reinterpret_cast<const Pair<Element>*>(data + walk.at(i));
#else
    memcpy(&pairs[i], data + walk.at(i), sizeof pairs[i]);
#endif
  }
  UNROLL for (int i = 0; i < kStrips; ++i) {
    UNROLL for (int k = 0; k < kPair; ++k) strips.values[i][k] = rules::load<Real>(pairs[i].elements[k]);
  }
}

template <class Element, class Real>
DEVICE_BODY inline void store_pairs(const Strips<Real>& strips, const Walk& walk, Element* data) {
  UNROLL for (int i = 0; i < kStrips; ++i) {
    if (walk.valid(i) == 0) continue;
    Pair<Element> pair;
    UNROLL for (int k = 0; k < kPair; ++k) pair.elements[k] = rules::store<Element>(strips.values[i][k]);
#ifdef __CUDA_ARCH__
    *reinterpret_cast<Pair<Element>*>(data + walk.at(i)) = pair;
#else
    memcpy(data + walk.at(i), &pair, sizeof pair);
#endif
  }
}

// A separate array: an array that a rolled loop indexes cannot stay in registers.
template <class Real>
DEVICE_BODY inline void load_singles(const Source& source, const Walk& walk, Strips<Real>& strips) {
  Strips<Real> singles;
  ROLLED for (int i = 0; i < kStrips; ++i) {
    const int valid = walk.valid(i);
    with_element<Real>(source.storage, [&](auto element) {
      const auto* const from = static_cast<const decltype(element)*>(source.data) + walk.at(i);
      UNROLL for (int k = 0; k < kPair; ++k) singles.values[i][k] = k < valid ? rules::load<Real>(from[k]) : Real(0);
    });
  }
  strips = singles;
}

template <class Real>
DEVICE_BODY inline void store_singles(const Strips<Real>& strips, const Walk& walk, const Target& target) {
  const Strips<Real> singles = strips;
  ROLLED for (int i = 0; i < kStrips; ++i) {
    const int valid = walk.valid(i);
    with_element<Real>(target.storage, [&](auto element) {
      auto* const to = static_cast<decltype(element)*>(target.data) + walk.at(i);
      UNROLL for (int k = 0; k < kPair; ++k) {
        if (k < valid) to[k] = rules::store<decltype(element)>(singles.values[i][k]);
      }
    });
  }
}

// Elements past the end are 0. If the source is absent, all elements are `missing`.
template <class Real>
DEVICE_BODY inline void load(const Source& source, const Walk& walk, Strips<Real>& strips, Real missing = 0) {
  if (source.data == nullptr) {
    UNROLL for (int i = 0; i < kStrips; ++i) { UNROLL for (int k = 0; k < kPair; ++k) strips.values[i][k] = missing; }
  } else if (source.by_pairs) {
    with_element<Real>(source.storage,
                       [&](auto element) { load_pairs(static_cast<const decltype(element)*>(source.data), walk, strips); });
  } else {
    load_singles(source, walk, strips);
  }
}

template <class Real>
DEVICE_BODY inline void store(const Target& target, const Walk& walk, const Strips<Real>& strips) {
  if (target.by_pairs) {
    with_element<Real>(target.storage,
                       [&](auto element) { store_pairs(strips, walk, static_cast<decltype(element)*>(target.data)); });
  } else {
    store_singles(strips, walk, target);
  }
}

}  // namespace apex::kernels::normalization::cuda
