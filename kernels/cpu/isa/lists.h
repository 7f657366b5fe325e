#pragma once

#include <type_traits>

#include "kernels/cpu/isa.h"
#include "kernels/rules/remainder.h"

// How loops read and write a block, by a set of vector operations (make_table.h).
namespace apex::kernels::cpu {

// Reads and writes only the first `count` < kLanes elements, by way of a copy.
template <class Set, class Element>
typename Set::Vector load_copied(const Element* from, int64_t count) {
  Element elements[Set::kLanes] = {};
  __builtin_memcpy(elements, from, static_cast<size_t>(count) * sizeof(Element));
  return Set::load(elements);
}

template <class Set, class Element>
void store_copied(typename Set::Vector v, Element* to, int64_t count) {
  Element elements[Set::kLanes];
  Set::store(v, elements);
  __builtin_memcpy(to, elements, static_cast<size_t>(count) * sizeof(Element));
}

template <class Set, class Element>
typename Set::Vector load_first(const Element* from, int64_t count) {
  if constexpr (std::is_same_v<Element, typename Set::Real>) {
    return Set::load_first(from, count);
  } else {
    return load_copied<Set>(from, count);
  }
}

template <class Set, class Element>
void store_first(typename Set::Vector v, Element* to, int64_t count) {
  if constexpr (std::is_same_v<Element, typename Set::Real>) {
    Set::store_first(v, to, count);
  } else {
    store_copied<Set>(v, to, count);
  }
}

template <Storage kStorage, class Real>
struct ElementOfStorage {
  using type = Real;
};
template <class Real>
struct ElementOfStorage<Storage::half, Real> {
  using type = rules::Half;
};
template <class Real>
struct ElementOfStorage<Storage::bfloat16, Real> {
  using type = rules::BFloat16;
};
template <class Real>
struct ElementOfStorage<Storage::remainder16, Real> {
  using type = int16_t;
};
template <class Real>
struct ElementOfStorage<Storage::remainder8, Real> {
  using type = int8_t;
};
template <Storage kStorage, class Real>
using ElementOf = typename ElementOfStorage<kStorage, Real>::type;

// The vector types of GCC and Clang, for operations on bits; a plain number for one lane.
template <class Number, int64_t kLanes>
struct NumbersOf {
  typedef Number type __attribute__((vector_size(kLanes * sizeof(Number))));
};
template <class Number>
struct NumbersOf<Number, 1> {
  using type = Number;
};
// As many numbers as Set has lanes.
template <class Set, class Number>
using Numbers = typename NumbersOf<Number, Set::kLanes>::type;

template <class Set, class To, class From>
Numbers<Set, To> converted(From from) {
  if constexpr (Set::kLanes == 1) {
    return static_cast<To>(from);
  } else {
    return __builtin_convertvector(from, Numbers<Set, To>);
  }
}

// Reads and writes as many numbers as Set has lanes, aligned or not.
template <class Set, class Number>
[[gnu::always_inline]] inline Numbers<Set, Number> load_numbers(const void* from) {
  Numbers<Set, Number> numbers;
  __builtin_memcpy(&numbers, from, sizeof numbers);
  return numbers;
}
template <class NumbersOrOne>
[[gnu::always_inline]] inline void store_numbers(NumbersOrOne numbers, void* to) {
  __builtin_memcpy(to, &numbers, sizeof numbers);
}

// Conversions of as many numbers as `kLanes` between 8 and 32 bits, for sets without instructions of their own: GCC 12 converts
// x86's vectors element by element.
template <int64_t kLanes>
struct Bytes {
  using Ints = typename NumbersOf<int32_t, kLanes>::type;

  template <class Byte>
  static Ints load_bytes(const Byte* from) {
    typename NumbersOf<Byte, kLanes>::type bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    if constexpr (kLanes == 1) {
      return bytes;
    } else {
      return __builtin_convertvector(bytes, Ints);
    }
  }

  // The lowest 8 bits of each.
  static void store_bytes(const Ints& numbers, void* to) {
    typename NumbersOf<int8_t, kLanes>::type bytes;
    if constexpr (kLanes == 1) {
      bytes = static_cast<int8_t>(numbers);
    } else {
      bytes = __builtin_convertvector(numbers, decltype(bytes));
    }
    __builtin_memcpy(to, &bytes, sizeof bytes);
  }
};

// The bits of a vector of float32 values, and back. `Bits`: of 32 bits, or float32 values themselves.
template <class Set>
[[gnu::always_inline]] inline Numbers<Set, uint32_t> bits_of(typename Set::Vector v) {
  Numbers<Set, uint32_t> bits;
  static_assert(sizeof bits == sizeof v);
  __builtin_memcpy(&bits, &v, sizeof bits);
  return bits;
}
template <class Set, class Bits>
[[gnu::always_inline]] inline typename Set::Vector vector_of(const Bits& bits) {
  alignas(sizeof(Bits)) typename Set::Real values[Set::kLanes];
  static_assert(sizeof bits == sizeof values);
  __builtin_memcpy(values, &bits, sizeof values);
  return Set::load(values);
}

// Reads and writes a vector of values that are stored as bfloat16 and remainders.
template <class Set, class Remainder>
struct SplitValues {
  using Vector = typename Set::Vector;
  static constexpr int kBits = 8 * sizeof(Remainder);

  [[gnu::always_inline]] static Vector load(const rules::BFloat16* rounded, const Remainder* remainders) {
    const auto upper = bits_of<Set>(Set::load(rounded)) >> 16;
    Numbers<Set, int32_t> extended;
    if constexpr (kBits == 8) {
      extended = Set::load_bytes(remainders);
    } else {
      extended = converted<Set, int32_t>(load_numbers<Set, Remainder>(remainders));
    }
    return vector_of<Set>(rules::join_bits<kBits>(upper, converted<Set, uint32_t>(extended)));
  }

  [[gnu::always_inline]] static void store(Vector v, rules::BFloat16* rounded, Remainder* remainders) {
    Numbers<Set, uint32_t> upper, kept;
    rules::split_bits<kBits>(bits_of<Set>(v), upper, kept);
    store_numbers(converted<Set, uint16_t>(upper), rounded);
    if constexpr (kBits == 8) {
      Set::store_bytes(converted<Set, int32_t>(kept), remainders);
    } else {
      store_numbers(converted<Set, Remainder>(kept), remainders);
    }
  }

  // Only the first `count` < kLanes values, by way of copies.
  static Vector load_first(const rules::BFloat16* rounded, const Remainder* remainders, int64_t count) {
    rules::BFloat16 upper[Set::kLanes] = {};
    Remainder lower[Set::kLanes] = {};
    __builtin_memcpy(upper, rounded, static_cast<size_t>(count) * sizeof *upper);
    __builtin_memcpy(lower, remainders, static_cast<size_t>(count) * sizeof *lower);
    return load(upper, lower);
  }
  static void store_first(Vector v, rules::BFloat16* rounded, Remainder* remainders, int64_t count) {
    rules::BFloat16 upper[Set::kLanes];
    Remainder lower[Set::kLanes];
    store(v, upper, lower);
    __builtin_memcpy(rounded, upper, static_cast<size_t>(count) * sizeof *upper);
    __builtin_memcpy(remainders, lower, static_cast<size_t>(count) * sizeof *lower);
  }
};

// The values and copies of a block.
template <class Set, class Rule, Storage kFirst, Storage kOthers, Storage kCopy>
class Lists {
  using Real = typename Set::Real;
  using Vector = typename Set::Vector;
  static constexpr bool kSplits = kCopy == Storage::remainder16 || kCopy == Storage::remainder8;
  static constexpr bool kParamIsLikeFirst = kCopy == Storage::like_first;

 public:
  static constexpr bool kCopies = kCopy != Storage::real && !kSplits && !kParamIsLikeFirst;
  static constexpr size_t kValues = rules::kValues<Rule>, kParam = 1;
  template <size_t i>
  using Element = ElementOf<i == 0 || (kParamIsLikeFirst && i == kParam) ? kFirst
                            : kSplits && i == kParam                     ? Storage::bfloat16
                                                                         : kOthers,
                            Real>;
  using Copy = ElementOf<kCopy, Real>;  // or a remainder

  explicit Lists(const Block<Rule>& block) : block_(block) {}

  // Whether copies should and can be written past the caches.
  static bool streams(const Block<Rule>& block) {
    return kCopies && block.past_caches && reinterpret_cast<uintptr_t>(block.data[kValues]) % (Set::kLanes * sizeof(Copy)) == 0;
  }

  template <size_t i>
  [[gnu::always_inline]] Vector load(int64_t at) const {
    if constexpr (!rules::is_read(Rule::kUses[i])) {
      return Vector(0);
    } else if constexpr (kSplits && i == kParam) {
      return SplitValues<Set, Copy>::load(values<i>() + at, copies() + at);
    } else {
      return Set::load(values<i>() + at);
    }
  }

  template <size_t i>
  [[gnu::always_inline]] void store(Vector v, int64_t at) const {
    if constexpr (!rules::is_written(Rule::kUses[i])) {
      return;
    } else if constexpr (kSplits && i == kParam) {
      SplitValues<Set, Copy>::store(v, values<i>() + at, copies() + at);
    } else {
      Set::store(v, values<i>() + at);
    }
  }

  template <size_t i>
  [[gnu::always_inline]] Vector load_rest(int64_t at, int64_t count) const {
    if constexpr (!rules::is_read(Rule::kUses[i])) {
      return Vector(0);
    } else if constexpr (kSplits && i == kParam) {
      return SplitValues<Set, Copy>::load_first(values<i>() + at, copies() + at, count);
    } else {
      return load_first<Set>(values<i>() + at, count);
    }
  }

  template <size_t i>
  [[gnu::always_inline]] void store_rest(Vector v, int64_t at, int64_t count) const {
    if constexpr (!rules::is_written(Rule::kUses[i])) {
      return;
    } else if constexpr (kSplits && i == kParam) {
      SplitValues<Set, Copy>::store_first(v, values<i>() + at, copies() + at, count);
    } else {
      store_first<Set>(v, values<i>() + at, count);
    }
  }

  template <bool kStreams>
  [[gnu::always_inline]] void store_copy(Vector v, int64_t at) const {
    kStreams ? Set::stream(v, copies() + at) : Set::store(v, copies() + at);
  }
  void store_copy_rest(Vector v, int64_t at, int64_t count) const { store_first<Set>(v, copies() + at, count); }

  // Fetches what loops read at `next` and what they write `block.ahead.written` elements behind `at`.
  template <size_t i>
  [[gnu::always_inline]] void prefetch(int64_t at, int64_t next) const {
    // Not in loops over single values: the compiler would no longer vectorise them.
    if constexpr (Set::kLanes > 1 && Rule::kUses[i] != rules::Use::none) {
      __builtin_prefetch(values<i>() + (rules::is_read(Rule::kUses[i]) ? next : at + block_.ahead.written));
    }
  }

 private:
  template <size_t i>
  Element<i>* values() const {
    return static_cast<Element<i>*>(block_.data[i]);
  }
  Copy* copies() const { return static_cast<Copy*>(block_.data[kValues]); }

  const Block<Rule> block_;
};

}  // namespace apex::kernels::cpu
