#pragma once

#include <cstring>

#include "kernels/normalization/formulas.h"
#include "kernels/rules/arithmetic.h"

// Memory access of the kernel bodies: kQuad adjacent elements at a time, kStrips times. The dtype is looked up once for all of
// them, so each body is compiled once instead of once per mix of dtypes, and many loads are in flight together. This path needs
// tensors whose quads can be accessed with one instruction. Other tensors use a loop over strips, which is slower but compiles
// to far less code.
namespace apex::kernels::normalization::cuda {

enum class Storage : int { half, bfloat16, float32, float64 };

// A tensor's memory. `by_quads`: at multiples of kQuad from each row's start, kQuad elements can be accessed at once.
struct Source {
  const void* data;  // null if the tensor is absent
  Storage storage;
  bool by_quads;
};

struct Target {
  void* data;
  Storage storage;
  bool by_quads;
};

// Up to kStrips quads: adjacent ones of a row, or the same columns of as many rows.
struct Walk {
  int64_t first;        // element index of the first quad
  int64_t stride;       // between quads, in elements
  int64_t column;       // of the first quad
  int64_t column_step;  // between quads
  int64_t columns;      // of the tensor
  int count;            // number of quads

  // Number of valid elements in quad i.
  DEVICE_BODY int valid(int i) const {
    if (i >= count) return 0;
    const int64_t left = columns - (column + i * column_step);
    return left >= kQuad ? kQuad : left > 0 ? static_cast<int>(left) : 0;
  }
  DEVICE_BODY int64_t at(int i) const { return first + i * stride; }
};

template <class Element>
struct alignas(kQuad * sizeof(Element) < 16 ? kQuad * sizeof(Element) : 16) Quad {
  Element elements[kQuad];
};

template <class Real>
struct Strips {
  Real values[kStrips][kQuad];
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
DEVICE_BODY inline void load_quads(const Element* data, const Walk& walk, Strips<Real>& strips) {
  Quad<Element> quads[kStrips];
  UNROLL for (int i = 0; i < kStrips; ++i) {
    quads[i] = Quad<Element>{};
    if (walk.valid(i) == 0) continue;
#ifdef __CUDA_ARCH__
    quads[i] = *reinterpret_cast<const Quad<Element>*>(data + walk.at(i));
#else
    memcpy(&quads[i], data + walk.at(i), sizeof quads[i]);
#endif
  }
  UNROLL for (int i = 0; i < kStrips; ++i) {
    UNROLL for (int k = 0; k < kQuad; ++k) strips.values[i][k] = rules::load<Real>(quads[i].elements[k]);
  }
}

template <class Element, class Real>
DEVICE_BODY inline void store_quads(const Strips<Real>& strips, const Walk& walk, Element* data) {
  UNROLL for (int i = 0; i < kStrips; ++i) {
    if (walk.valid(i) == 0) continue;
    Quad<Element> quad;
    UNROLL for (int k = 0; k < kQuad; ++k) quad.elements[k] = rules::store<Element>(strips.values[i][k]);
#ifdef __CUDA_ARCH__
    *reinterpret_cast<Quad<Element>*>(data + walk.at(i)) = quad;
#else
    memcpy(data + walk.at(i), &quad, sizeof quad);
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
      UNROLL for (int k = 0; k < kQuad; ++k) singles.values[i][k] = k < valid ? rules::load<Real>(from[k]) : Real(0);
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
      UNROLL for (int k = 0; k < kQuad; ++k) {
        if (k < valid) to[k] = rules::store<decltype(element)>(singles.values[i][k]);
      }
    });
  }
}

// Elements past the end are 0. If the source is absent, all elements are `missing`.
template <class Real>
DEVICE_BODY inline void load(const Source& source, const Walk& walk, Strips<Real>& strips, Real missing = 0) {
  if (source.data == nullptr) {
    UNROLL for (int i = 0; i < kStrips; ++i) { UNROLL for (int k = 0; k < kQuad; ++k) strips.values[i][k] = missing; }
  } else if (source.by_quads) {
    with_element<Real>(source.storage,
                       [&](auto element) { load_quads(static_cast<const decltype(element)*>(source.data), walk, strips); });
  } else {
    load_singles(source, walk, strips);
  }
}

template <class Real>
DEVICE_BODY inline void store(const Target& target, const Walk& walk, const Strips<Real>& strips) {
  if (target.by_quads) {
    with_element<Real>(target.storage,
                       [&](auto element) { store_quads(strips, walk, static_cast<decltype(element)*>(target.data)); });
  } else {
    store_singles(strips, walk, target);
  }
}

}  // namespace apex::kernels::normalization::cuda
