#pragma once

#include <cstring>

#include "kernels/normalization/formulas.h"
#include "kernels/rules/arithmetic.h"

// Memory access of the kernel bodies: kPair adjacent elements at a time, kStrips times. An Access says what is known about the
// tensors when the body is compiled. It has
//   Real          the type of the arithmetic
//   kMayRecover   whether backward may get the output instead of the input
//   Fetched       what a fetch leaves in registers
//   valid         the number of elements of a pair
//   fetch         loads. Several tensors are fetched before the first is used, so that their loads wait for memory together.
//   value         a fetched element in Real; 0 past the end
//   store         rounds and stores
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
  int count;        // number of pairs that have an element

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

// One instruction on a GPU.
template <class Value>
DEVICE_BODY inline void read(const void* from, Value& value) {
#ifdef __CUDA_ARCH__
  value = *static_cast<const Value*>(from);
#else
  memcpy(&value, from, sizeof value);
#endif
}

template <class Value>
DEVICE_BODY inline void write(void* to, const Value& value) {
#ifdef __CUDA_ARCH__
  *static_cast<Value*>(to) = value;
#else
  memcpy(to, &value, sizeof value);
#endif
}

// All tensors have one dtype, and their pairs can be accessed with one instruction: the frequent case, at full speed.
template <class Element>
struct OneType {
  using Real = float;
  static constexpr bool kMayRecover = false;

  // Whole words: the compiler would split a pair of 16-bit elements and join it again.
  struct alignas(Pair<Element>) Words {
    uint32_t of[kPair * sizeof(Element) / sizeof(uint32_t)];
  };
  struct Fetched {
    Words pairs[kStrips];
  };

  DEVICE_BODY static int valid(const Walk& walk, int i) { return i < walk.count ? kPair : 0; }

  DEVICE_BODY static Real value(const Fetched& fetched, int i, int k) {
    Pair<Element> pair;
    memcpy(&pair, &fetched.pairs[i], sizeof pair);
    return rules::load<Real>(pair.elements[k]);
  }

  // `missing`: the elements of an absent tensor.
  DEVICE_BODY static void fetch(const Source& source, const Walk& walk, Fetched& fetched, Real missing = 0) {
    const auto* const from = static_cast<const Element*>(source.data);
    Pair<Element> filling;
    UNROLL for (int k = 0; k < kPair; ++k) filling.elements[k] = rules::store<Element>(from == nullptr ? missing : Real(0));
    UNROLL for (int i = 0; i < kStrips; ++i) {
      memcpy(&fetched.pairs[i], &filling, sizeof filling);
      if (from != nullptr && i < walk.count) read(from + walk.at(i), fetched.pairs[i]);
    }
  }

  DEVICE_BODY static void store(const Target& target, const Walk& walk, const Strips<Real>& strips) {
    auto* const to = static_cast<Element*>(target.data);
    UNROLL for (int i = 0; i < kStrips; ++i) {
      if (i >= walk.count) break;
      Pair<Element> pair;
      UNROLL for (int k = 0; k < kPair; ++k) pair.elements[k] = rules::store<Element>(strips.values[i][k]);
      write(to + walk.at(i), pair);
    }
  }
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

// Any tensors. The dtype is looked up once for all strips, so a body is compiled once instead of once per mix of dtypes.
// Tensors whose pairs cannot be accessed with one instruction use a loop over strips, which is slower but compiles to far less
// code.
template <class R>
struct AnyMix {
  using Real = R;
  using Fetched = Strips<Real>;
  static constexpr bool kMayRecover = true;

  DEVICE_BODY static int valid(const Walk& walk, int i) {
    if (i >= walk.count) return 0;
    const int here = walk.left - i * walk.column_step;
    return here >= kPair ? kPair : here > 0 ? here : 0;
  }

  DEVICE_BODY static Real value(const Fetched& fetched, int i, int k) { return fetched.values[i][k]; }

  // `missing`: the elements of an absent tensor.
  DEVICE_BODY static void fetch(const Source& source, const Walk& walk, Fetched& fetched, Real missing = 0) {
    if (source.data == nullptr) {
      UNROLL for (int i = 0; i < kStrips; ++i) { UNROLL for (int k = 0; k < kPair; ++k) fetched.values[i][k] = missing; }
    } else if (source.by_pairs) {
      with_element<Real>(source.storage, [&](auto element) { fetch_pairs<decltype(element)>(source, walk, fetched); });
    } else {
      fetch_singles(source, walk, fetched);
    }
  }

  DEVICE_BODY static void store(const Target& target, const Walk& walk, const Strips<Real>& strips) {
    if (target.by_pairs) {
      with_element<Real>(target.storage, [&](auto element) { store_pairs<decltype(element)>(target, walk, strips); });
    } else {
      store_singles(target, walk, strips);
    }
  }

 private:
  template <class Element>
  DEVICE_BODY static void fetch_pairs(const Source& source, const Walk& walk, Fetched& fetched) {
    Pair<Element> pairs[kStrips];
    UNROLL for (int i = 0; i < kStrips; ++i) {
      pairs[i] = Pair<Element>{};
      if (valid(walk, i) != 0) read(static_cast<const Element*>(source.data) + walk.at(i), pairs[i]);
    }
    UNROLL for (int i = 0; i < kStrips; ++i) {
      UNROLL for (int k = 0; k < kPair; ++k) fetched.values[i][k] = rules::load<Real>(pairs[i].elements[k]);
    }
  }

  // An array that a rolled loop indexes cannot stay in registers, so it is a separate one.
  DEVICE_BODY static void fetch_singles(const Source& source, const Walk& walk, Fetched& fetched) {
    Strips<Real> singles;
    ROLLED for (int i = 0; i < kStrips; ++i) {
      const int count = valid(walk, i);
      with_element<Real>(source.storage, [&](auto element) {
        const auto* const from = static_cast<const decltype(element)*>(source.data) + walk.at(i);
        UNROLL for (int k = 0; k < kPair; ++k) singles.values[i][k] = k < count ? rules::load<Real>(from[k]) : Real(0);
      });
    }
    fetched = singles;
  }

  template <class Element>
  DEVICE_BODY static void store_pairs(const Target& target, const Walk& walk, const Strips<Real>& strips) {
    UNROLL for (int i = 0; i < kStrips; ++i) {
      if (valid(walk, i) == 0) continue;
      Pair<Element> pair;
      UNROLL for (int k = 0; k < kPair; ++k) pair.elements[k] = rules::store<Element>(strips.values[i][k]);
      write(static_cast<Element*>(target.data) + walk.at(i), pair);
    }
  }

  DEVICE_BODY static void store_singles(const Target& target, const Walk& walk, const Strips<Real>& strips) {
    const Strips<Real> singles = strips;
    ROLLED for (int i = 0; i < kStrips; ++i) {
      const int count = valid(walk, i);
      with_element<Real>(target.storage, [&](auto element) {
        auto* const to = static_cast<decltype(element)*>(target.data) + walk.at(i);
        UNROLL for (int k = 0; k < kPair; ++k) {
          if (k < count) to[k] = rules::store<decltype(element)>(singles.values[i][k]);
        }
      });
    }
  }
};

// The tensors of a call: those that OneType can access, by their dtype, and all others.
enum class Mix : int { any, half, bfloat16, float32 };

// Returns visit(Access()) with the fastest access.
template <class Real, class Visit>
auto with_access(Mix mix, const Visit& visit) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    if (mix == Mix::half) return visit(OneType<rules::Half>());
    if (mix == Mix::bfloat16) return visit(OneType<rules::BFloat16>());
    if (mix == Mix::float32) return visit(OneType<float>());
  }
  return visit(AnyMix<Real>());
}

}  // namespace apex::kernels::normalization::cuda
