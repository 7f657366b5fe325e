#pragma once

#include <cstring>

#include "kernels/normalization/order.h"
#include "kernels/rules/convert.h"

// Memory as kernel bodies see it: kQuad neighbouring elements at a time, kStrips times in a row. Which dtype they have is
// looked up once for all of those, so that a body is compiled once, not once per mix of dtypes, and has many loads on their way
// together.
namespace apex::kernels::normalization::cuda {

enum class Storage : int { half, bfloat16, float32, float64 };

// A tensor's memory. `by_quads`: elements at a multiple of kQuad from each row's start may be accessed kQuad at once.
struct Source {
  const void* data;  // null: a tensor that is not there
  Storage storage;
  bool by_quads;
};

struct Target {
  void* data;
  Storage storage;
  bool by_quads;
};

// Up to kStrips quads of the columns of a row, or of one quad of columns in as many rows.
struct Walk {
  int64_t first;        // element index of the first quad
  int64_t stride;       // from one quad to the next
  int64_t column;       // of the first quad
  int64_t column_step;  // from one quad to the next
  int64_t columns;      // of the tensor
  int count;            // of quads

  // How many elements quad i has.
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

template <class Element, class Real>
DEVICE_BODY inline void load_as(const Source& source, const Walk& walk, Strips<Real>& strips) {
  Quad<Element> quads[kStrips];
  UNROLL for (int i = 0; i < kStrips; ++i) {
    const Element* const from = static_cast<const Element*>(source.data) + walk.at(i);
    const int valid = walk.valid(i);
    quads[i] = Quad<Element>{};
    if (valid == kQuad && source.by_quads) {
#ifdef __CUDA_ARCH__
      quads[i] = *reinterpret_cast<const Quad<Element>*>(from);
#else
      memcpy(&quads[i], from, sizeof quads[i]);
#endif
    } else {
      UNROLL for (int k = 0; k < kQuad; ++k) {
        if (k < valid) quads[i].elements[k] = from[k];
      }
    }
  }
  UNROLL for (int i = 0; i < kStrips; ++i) {
    UNROLL for (int k = 0; k < kQuad; ++k) strips.values[i][k] = rules::load<Real>(quads[i].elements[k]);
  }
}

// Elements that are not there are 0; of a source that is not there, all are `missing`.
template <class Real>
DEVICE_BODY inline void load(const Source& source, const Walk& walk, Strips<Real>& strips, Real missing = 0) {
  if (source.data == nullptr) {
    UNROLL for (int i = 0; i < kStrips; ++i) { UNROLL for (int k = 0; k < kQuad; ++k) strips.values[i][k] = missing; }
    return;
  }
  switch (source.storage) {
    case Storage::half:
      return load_as<rules::Half>(source, walk, strips);
    case Storage::bfloat16:
      return load_as<rules::BFloat16>(source, walk, strips);
    case Storage::float32:
      return load_as<float>(source, walk, strips);
    case Storage::float64:
      return load_as<double>(source, walk, strips);
  }
}

template <class Element, class Real>
DEVICE_BODY inline void store_as(const Target& target, const Walk& walk, const Strips<Real>& strips) {
  UNROLL for (int i = 0; i < kStrips; ++i) {
    Element* const to = static_cast<Element*>(target.data) + walk.at(i);
    const int valid = walk.valid(i);
    Quad<Element> quad;
    UNROLL for (int k = 0; k < kQuad; ++k) quad.elements[k] = rules::store<Element>(strips.values[i][k]);
    if (valid == kQuad && target.by_quads) {
#ifdef __CUDA_ARCH__
      *reinterpret_cast<Quad<Element>*>(to) = quad;
#else
      memcpy(to, &quad, sizeof quad);
#endif
    } else {
      UNROLL for (int k = 0; k < kQuad; ++k) {
        if (k < valid) to[k] = quad.elements[k];
      }
    }
  }
}

template <class Real>
DEVICE_BODY inline void store(const Target& target, const Walk& walk, const Strips<Real>& strips) {
  switch (target.storage) {
    case Storage::half:
      return store_as<rules::Half>(target, walk, strips);
    case Storage::bfloat16:
      return store_as<rules::BFloat16>(target, walk, strips);
    case Storage::float32:
      return store_as<float>(target, walk, strips);
    case Storage::float64:
      return store_as<double>(target, walk, strips);
  }
}

}  // namespace apex::kernels::normalization::cuda
