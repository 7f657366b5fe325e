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
using ElementOf = std::conditional_t<kStorage == Storage::half, rules::Half,
                                     std::conditional_t<kStorage == Storage::bfloat16, rules::BFloat16, Real>>;

// The loop of one rule over one mix of storage. I are the indices of its values, S those of its sums.
template <class Set, class Rule, Storage kFirst, Storage kOthers, Storage kCopy, class Values, class SumIndices>
class Loop;

template <class Set, class Rule, Storage kFirst, Storage kOthers, Storage kCopy, size_t... I, size_t... S>
class Loop<Set, Rule, kFirst, kOthers, kCopy, std::index_sequence<I...>, std::index_sequence<S...>> {
  using Real = typename Set::Real;
  using Vector = typename Set::Vector;
  using Total = Sums<Set, rules::SumReal<Rule>>;
  template <size_t i>
  using Element = ElementOf<i == 0 ? kFirst : kOthers, Real>;
  using Copy = ElementOf<kCopy, Real>;
  static constexpr bool kCopies = kCopy != Storage::real;
  static constexpr size_t kValues = sizeof...(I), kParam = 1;
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

  template <bool kStreams>
  [[gnu::always_inline]] void apply(int64_t at, int64_t next, typename Total::Vector* totals) const {
    // Not in loops over single values: the compiler would no longer vectorise them.
    if constexpr (Set::kLanes > 1) {
      (__builtin_prefetch(values<I>() + (rules::is_read(Rule::kUses[I]) ? next : at + block_.ahead.written)), ...);
    }
    Vector v[] = {(rules::is_read(Rule::kUses[I]) ? Set::load(values<I>() + at) : Vector(0))...};
    rule_(v[I]..., totals[S]...);
    ((rules::is_written(Rule::kUses[I]) ? Set::store(v[I], values<I>() + at) : void()), ...);
    if constexpr (kCopies) kStreams ? Set::stream(v[kParam], copies() + at) : Set::store(v[kParam], copies() + at);
  }

  [[gnu::always_inline]] void apply_to_rest(int64_t at, [[maybe_unused]] int64_t lane, int64_t count) const {
    Vector v[] = {(rules::is_read(Rule::kUses[I]) ? load_first<Set>(values<I>() + at, count) : Vector(0))...};
    [[maybe_unused]]
    typename Total::Vector totals[] = {Total::load_first(block_.sums[S] + lane, count)..., typename Total::Vector(0)};
    rule_(v[I]..., totals[S]...);
    ((rules::is_written(Rule::kUses[I]) ? store_first<Set>(v[I], values<I>() + at, count) : void()), ...);
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

// Plain loops, which the compiler vectorises for the set's processor. Set makes them local to its source file.
template <class Set, class Remainder>
void join(const void* rounded, const void* remainders, float* __restrict values, int64_t size) {
  const auto* __restrict upper = static_cast<const rules::BFloat16*>(rounded);
  const auto* __restrict lower = static_cast<const Remainder*>(remainders);
  for (int64_t i = 0; i < size; ++i) values[i] = rules::join(upper[i], lower[i]);
}

template <class Set, class Remainder>
void split(const float* __restrict values, void* rounded, void* remainders, int64_t size) {
  auto* __restrict upper = static_cast<rules::BFloat16*>(rounded);
  auto* __restrict lower = static_cast<Remainder*>(remainders);
  for (int64_t i = 0; i < size; ++i) {
    const auto parts = rules::split<Remainder>(values[i]);
    upper[i] = parts.rounded;
    lower[i] = parts.remainder;
  }
}

// Whether a mix of storage has a kernel. These are the mixes of typical training steps: all lists in one type (the only mix of
// `portable`); 16-bit gradients with float32 for the rest; copies in the gradients' type, or in any type if all lists are
// float32; and conversions from one list to another.
template <class Set, class Rule>
constexpr bool is_made(Storage first, Storage others, Storage copy) {
  if (Set::kLanes == 1) return first == Storage::real && others == Storage::real && copy == Storage::real;
  constexpr size_t kLists = rules::kValues<Rule>;
  if (copy != Storage::real) {
    constexpr bool kUpdatesParam = kLists > 1 && Rule::kUses[kLists > 1 ? 1 : 0] == rules::Use::update;
    return kUpdatesParam && others == Storage::real && (first == copy || first == Storage::real);
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
  ((slot.run[kMix / 9][kMix / 3 % 3][kMix % 3] = kernel<Set, Rule, kMix / 9, kMix / 3 % 3, kMix % 3>()), ...);
  slot.fold = fold<Set, Rule>;
  return slot;
}

template <class Set, class... Rules>
constexpr RuleTable<Rules...> make_rules(const RuleTable<Rules...>*) {
  static_assert(kStorages == 3);
  return {make_slot<Set, Rules>(std::make_integer_sequence<int, 27>())...};
}

template <class Set>
constexpr KernelTable make_table() {
  return {
      make_rules<Set>(static_cast<const FloatRules*>(nullptr)),
      {read<Set, rules::Half>, read<Set, rules::BFloat16>, write<Set, rules::Half>, write<Set, rules::BFloat16>,
       join<Set, int16_t>, join<Set, int8_t>, split<Set, int16_t>, split<Set, int8_t>, Set::fence}};
}

}  // namespace apex::kernels::cpu
