#pragma once

#include <type_traits>
#include <utility>

#include "kernels/cpu/isa.h"
#include "kernels/rules/remainder.h"

// Loops over blocks, for source files that each define a set of vector operations `Set`:
//   Set::Vector          the type that rules compute with: kLanes values of type Set::Real
//   load, store          read and write a vector of values or 16-bit elements, aligned or not
//   load_first, store_first   read and write only the first `count` < kLanes values
//   stream               stores a vector past the caches, to 16-bit elements aligned to its size; fence() follows the last one
//   Wide                 Vector of kLanes float64 sums, with load, store, load_first and store_first
//   OfBFloat16           a set with load and store for bfloat16 only, which may reorder the lanes
// `Set` is local to its source file, and so are all instantiations of the templates here.
namespace apex::kernels::cpu {

// For how many rows of elements a row of sums is read and written once. A rule with one list takes as many rows as fit a page.
// With more lists the rows are processed one by one: the hardware prefetcher cannot follow so many places at a time.
template <class Rule, class Element>
constexpr int64_t kDepth = rules::kValues<Rule> == 1 ? 4096 / (rules::kLanes * static_cast<int64_t>(sizeof(Element))) : 1;

// Reads and writes a row of sums: as Set::Real, or in float64 by Set::Wide.
template <class Set, class SumReal, bool kIsWide = !std::is_same_v<SumReal, typename Set::Real>>
struct Sums {
  using Vector = typename Set::Vector;
  static Vector load(const SumReal* from) { return Set::load(from); }
  static Vector load_first(const SumReal* from, int64_t count) { return Set::load_first(from, count); }
  static void store(Vector v, SumReal* to) { Set::store(v, to); }
  static void store_first(Vector v, SumReal* to, int64_t count) { Set::store_first(v, to, count); }
};

template <class Set>
struct Sums<Set, double, true> : Set::Wide {};

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

// A vector of integers with as many elements as Set has lanes. The vector types of GCC and Clang; a plain integer for one lane.
template <class Integer, int64_t kLanes>
struct IntegersOf {
  typedef Integer type __attribute__((vector_size(kLanes * sizeof(Integer))));
};
template <class Integer>
struct IntegersOf<Integer, 1> {
  using type = Integer;
};
template <class Set, class Integer>
using Integers = typename IntegersOf<Integer, Set::kLanes>::type;

template <class Set, class To, class From>
Integers<Set, To> converted(From from) {
  if constexpr (Set::kLanes == 1) {
    return static_cast<To>(from);
  } else {
    return __builtin_convertvector(from, Integers<Set, To>);
  }
}

// Reads and writes a vector of values that are stored as bfloat16 and remainders.
template <class Set, class Remainder>
struct SplitValues {
  using Vector = typename Set::Vector;
  static constexpr int kBits = 8 * sizeof(Remainder);

  [[gnu::always_inline]] static Vector load(const rules::BFloat16* rounded, const Remainder* remainders) {
    Integers<Set, uint16_t> upper;
    Integers<Set, Remainder> lower;
    __builtin_memcpy(&upper, rounded, sizeof upper);
    __builtin_memcpy(&lower, remainders, sizeof lower);
    const auto extended = converted<Set, uint32_t>(converted<Set, int32_t>(lower));
    const auto bits = rules::join_bits<kBits>(converted<Set, uint32_t>(upper), extended);
    return vector_of(bits);
  }

  [[gnu::always_inline]] static void store(Vector v, rules::BFloat16* rounded, Remainder* remainders) {
    Integers<Set, uint32_t> bits, upper, kept;
    static_assert(sizeof bits == sizeof v);
    __builtin_memcpy(&bits, &v, sizeof bits);
    rules::split_bits<kBits>(bits, upper, kept);
    const auto stored = converted<Set, uint16_t>(upper);
    const auto lower = converted<Set, Remainder>(kept);
    __builtin_memcpy(static_cast<void*>(rounded), &stored, sizeof stored);
    __builtin_memcpy(remainders, &lower, sizeof lower);
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

 private:
  [[gnu::always_inline]] static Vector vector_of(const Integers<Set, uint32_t>& bits) {
    alignas(sizeof(Vector)) typename Set::Real values[Set::kLanes];
    __builtin_memcpy(values, &bits, sizeof values);
    return Set::load(values);
  }
};

// The loop of one rule over one mix of storage. I are the indices of its values, S those of its sums.
template <class Set, class Rule, Storage kFirst, Storage kOthers, Storage kCopy, class Values, class SumIndices>
class Loop;

template <class Set, class Rule, Storage kFirst, Storage kOthers, Storage kCopy, size_t... I, size_t... S>
class Loop<Set, Rule, kFirst, kOthers, kCopy, std::index_sequence<I...>, std::index_sequence<S...>> {
  using Real = typename Set::Real;
  using Vector = typename Set::Vector;
  using Total = Sums<Set, rules::SumReal<Rule>>;
  static constexpr bool kSplits = kCopy == Storage::remainder16 || kCopy == Storage::remainder8;
  static constexpr bool kCopies = kCopy != Storage::real && !kSplits;
  static constexpr size_t kValues = sizeof...(I), kParam = 1;
  template <size_t i>
  using Element = ElementOf<i == 0                   ? kFirst
                            : kSplits && i == kParam ? Storage::bfloat16
                                                     : kOthers,
                            Real>;
  using Copy = ElementOf<kCopy, Real>;  // or a remainder
  static constexpr int64_t kRows = kDepth<Rule, Element<0>>;

 public:
  static void run(const Rule& rule, const Block<Rule>& block) {
    if constexpr (kCopies) {
      const auto to = reinterpret_cast<uintptr_t>(block.data[kValues]);
      if (block.past_caches && to % (Set::kLanes * sizeof(Copy)) == 0) return Loop(rule, block).template all<true>();
    }
    Loop(rule, block).template all<false>();
  }

 private:
  // Takes copies of both arguments: stores to elements cannot change them, so the compiler keeps them in registers.
  Loop(const Rule& rule, const Block<Rule>& block) : rule_(rule), block_(block) {}

  template <size_t i>
  Element<i>* values() const {
    return static_cast<Element<i>*>(block_.data[i]);
  }
  Copy* copies() const { return static_cast<Copy*>(block_.data[kValues]); }

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
  [[gnu::always_inline]] void all() const {
    int64_t done = 0;
    if constexpr (sizeof...(S) != 0) {
      const int64_t rows = block_.size / rules::kLanes;
      for (int64_t row = 0; row < rows; row += kRows) {
        const int64_t depth = rows - row < kRows ? rows - row : kRows;
        add_rows<kStreams>(row * rules::kLanes, depth, row == 0 && block_.starts_sums);
      }
      done = rows * rules::kLanes;
    }
    [[maybe_unused]] const int64_t row = done;
    for (; done + Set::kLanes <= block_.size; done += Set::kLanes) {
      [[maybe_unused]]
      typename Total::Vector totals[] = {Total::load(block_.sums[S] + (done - row))..., typename Total::Vector(0)};
      apply<kStreams>(done, done + block_.ahead.read, totals);
      (Total::store(totals[S], block_.sums[S] + (done - row)), ...);
    }
    if (done < block_.size) apply_to_rest(done, done - row, block_.size - done);
  }

  // Adds several rows lane by lane, so that sums stay in registers, and prefetches the next rows in order.
  template <bool kStreams>
  [[gnu::always_inline]] void add_rows(int64_t begin, int64_t rows, bool from_zero) const {
    int64_t next = begin + (kRows == 1 ? block_.ahead.read : kRows * rules::kLanes);
    for (int64_t lane = 0; lane < rules::kLanes; lane += Set::kLanes) {
      typename Total::Vector totals[] = {(from_zero ? typename Total::Vector(0) : Total::load(block_.sums[S] + lane))...,
                                         typename Total::Vector(0)};
      for (int64_t row = 0; row < rows; ++row, next += Set::kLanes) {
        apply<kStreams>(begin + row * rules::kLanes + lane, next, totals);
      }
      (Total::store(totals[S], block_.sums[S] + lane), ...);
    }
  }

  template <size_t i>
  [[gnu::always_inline]] void prefetch(int64_t at) const {
    if constexpr (Rule::kUses[i] != rules::Use::none) __builtin_prefetch(values<i>() + at);
  }

  template <bool kStreams>
  [[gnu::always_inline]] void apply(int64_t at, int64_t next, typename Total::Vector* totals) const {
    // Not in loops over single values: the compiler would no longer vectorise them.
    if constexpr (Set::kLanes > 1) {
      (prefetch<I>(rules::is_read(Rule::kUses[I]) ? next : at + block_.ahead.written), ...);
    }
    Vector v[] = {load<I>(at)...};
    rule_(v[I]..., totals[S]...);
    (store<I>(v[I], at), ...);
    if constexpr (kCopies) kStreams ? Set::stream(v[kParam], copies() + at) : Set::store(v[kParam], copies() + at);
  }

  [[gnu::always_inline]] void apply_to_rest(int64_t at, [[maybe_unused]] int64_t lane, int64_t count) const {
    Vector v[] = {load_rest<I>(at, count)...};
    [[maybe_unused]]
    typename Total::Vector totals[] = {Total::load_first(block_.sums[S] + lane, count)..., typename Total::Vector(0)};
    rule_(v[I]..., totals[S]...);
    (store_rest<I>(v[I], at, count), ...);
    if constexpr (kCopies) store_first<Set>(v[kParam], copies() + at, count);
    (Total::store_first(totals[S], block_.sums[S] + lane, count), ...);
  }

  const Rule rule_;
  const Block<Rule> block_;
};

// Rounds one sum at a time: GCC 12 drops the rounding to float32 when it vectorises several.
template <class Set, class Rule>
double fold(rules::SumReal<Rule>* lanes, int count) {
  using Total = Sums<Set, rules::SumReal<Rule>>;
  if constexpr (Rule::kSums != 0) {
    int64_t width = count / 2;
    for (; width >= Set::kLanes; width /= 2) {
      for (int64_t i = 0; i < width; i += Set::kLanes) {
        Total::store(Rule::Fold::join(Total::load(lanes + i), Total::load(lanes + i + width)), lanes + i);
      }
    }
    for (; width > 0; width /= 2) {
      Total::store_first(Rule::Fold::join(Total::load_first(lanes, width), Total::load_first(lanes + width, width)), lanes,
                         width);
    }
  }
  return rules::chunk_sum<Rule>(lanes[0]);
}

template <class Set, class Stored>
void read(const void* stored, typename Set::Real* __restrict values, int64_t size) {
  const Stored* __restrict from = static_cast<const Stored*>(stored);
  int64_t i = 0;
  for (; i + Set::kLanes <= size; i += Set::kLanes) Set::store(Set::load(from + i), values + i);
  if (i < size) Set::store_first(load_first<Set>(from + i, size - i), values + i, size - i);
}

template <class Set, class Stored>
void write(const typename Set::Real* __restrict values, void* stored, int64_t size) {
  Stored* __restrict to = static_cast<Stored*>(stored);
  int64_t i = 0;
  for (; i + Set::kLanes <= size; i += Set::kLanes) Set::store(Set::load(values + i), to + i);
  if (i < size) store_first<Set>(Set::load_first(values + i, size - i), to + i, size - i);
}

// Whether a mix of storage has a kernel. These are the mixes of typical training steps: all lists in one type (the only mix of
// `portable`, besides remainders); 16-bit gradients with float32 for the rest; copies in the gradients' type, or in any type if
// all lists are float32; remainders beside bfloat16 or float32 gradients; and conversions from one list to another.
template <class Set, class Rule>
constexpr bool is_made(Storage first, Storage others, Storage copy) {
  constexpr size_t kLists = rules::kValues<Rule>;
  constexpr rules::ParamStorage kParams = rules::kParamStorage<Rule>;
  if (copy == Storage::remainder16 || copy == Storage::remainder8) {
    const bool has_kernel = first == Storage::real || (first == Storage::bfloat16 && Set::kLanes > 1);
    return std::is_same_v<typename Set::Real, float> && kParams != rules::ParamStorage::whole && others == Storage::real &&
           has_kernel;
  }
  if (kParams == rules::ParamStorage::split) return false;
  if (Set::kLanes == 1) return first == Storage::real && others == Storage::real && copy == Storage::real;
  if (copy != Storage::real) {
    return rules::kUpdatesParam<Rule> && others == Storage::real && (first == copy || first == Storage::real);
  }
  if (kLists == 1 || first == others) return first == others;
  return others == Storage::real || (kLists == 2 && first == Storage::real);
}

// The set for a loop. A rule with sums needs its lanes in order, so it cannot use OfBFloat16.
template <class Set, class Rule, Storage kFirst, Storage kOthers>
using LoopSet = std::conditional_t<kFirst == Storage::bfloat16 && kOthers == Storage::bfloat16 && Rule::kSums == 0,
                                   typename Set::OfBFloat16, Set>;

template <class Set, class Rule, int kFirst, int kOthers, int kCopy>
constexpr RunBlock<Rule> kernel() {
  constexpr auto first = static_cast<Storage>(kFirst), others = static_cast<Storage>(kOthers),
                 copy = static_cast<Storage>(kCopy);
  if constexpr (is_made<Set, Rule>(first, others, copy)) {
    return Loop<LoopSet<Set, Rule, first, others>, Rule, first, others, copy, std::make_index_sequence<rules::kValues<Rule>>,
                std::make_index_sequence<Rule::kSums>>::run;
  } else {
    return nullptr;
  }
}

template <class Set, class Rule, int... kMix>
constexpr Slot<Rule> make_slot(std::integer_sequence<int, kMix...>) {
  Slot<Rule> slot{};
  constexpr int kLast = kCopyStorages, kLastTwo = kStorages * kCopyStorages;
  ((slot.run[kMix / kLastTwo][kMix / kLast % kStorages][kMix % kLast] =
        kernel<Set, Rule, kMix / kLastTwo, kMix / kLast % kStorages, kMix % kLast>()),
   ...);
  slot.fold = fold<Set, Rule>;
  return slot;
}

template <class Set, class... Rules>
constexpr RuleTable<Rules...> make_rules(const RuleTable<Rules...>*) {
  return {make_slot<Set, Rules>(std::make_integer_sequence<int, kStorages * kStorages * kCopyStorages>())...};
}

template <class Set>
constexpr KernelTable make_table() {
  return {
      make_rules<Set>(static_cast<const FloatRules*>(nullptr)),
      {read<Set, rules::Half>, read<Set, rules::BFloat16>, write<Set, rules::Half>, write<Set, rules::BFloat16>, Set::fence}};
}

}  // namespace apex::kernels::cpu
