#pragma once

#include <type_traits>
#include <utility>

#include "kernels/cpu/isa/coded_loop.h"
#include "kernels/cpu/isa/lists.h"

// Loops over blocks, for source files that each define a set of vector operations `Set`:
//   Set::Vector          the type that rules compute with: kLanes values of type Set::Real
//   load, store          read and write a vector of values or 16-bit elements, aligned or not
//   load_first, store_first   read and write only the first `count` < kLanes values
//   load_bytes, store_bytes   convert between 8 and 32 bits (lists.h: Bytes)
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

// The loop of one rule over one mix of storage. I are the indices of its values, S those of its sums.
template <class Set, class Rule, Storage kFirst, Storage kOthers, Storage kCopy, class Values, class SumIndices>
class Loop;

template <class Set, class Rule, Storage kFirst, Storage kOthers, Storage kCopy, size_t... I, size_t... S>
class Loop<Set, Rule, kFirst, kOthers, kCopy, std::index_sequence<I...>, std::index_sequence<S...>> {
  using Vector = typename Set::Vector;
  using Total = Sums<Set, rules::SumReal<Rule>>;
  using BlockLists = Lists<Set, Rule, kFirst, kOthers, kCopy>;
  static constexpr size_t kParam = BlockLists::kParam;
  static constexpr int64_t kRows = kDepth<Rule, typename BlockLists::template Element<0>>;

 public:
  static void run(const Rule& rule, const Block<Rule>& block) {
    const Loop loop(rule, block);
    BlockLists::streams(block) ? loop.template all<BlockLists::kCopies>() : loop.template all<false>();
  }

 private:
  Loop(const Rule& rule, const Block<Rule>& block) : rule_(rule), block_(block), lists_(block) {}

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
    (lists_.template prefetch<I>(at, next), ...);
    Vector v[] = {lists_.template load<I>(at)...};
    rule_(v[I]..., totals[S]...);
    (lists_.template store<I>(v[I], at), ...);
    if constexpr (BlockLists::kCopies) lists_.template store_copy<kStreams>(v[kParam], at);
  }

  [[gnu::always_inline]] void apply_to_rest(int64_t at, [[maybe_unused]] int64_t lane, int64_t count) const {
    Vector v[] = {lists_.template load_rest<I>(at, count)...};
    [[maybe_unused]]
    typename Total::Vector totals[] = {Total::load_first(block_.sums[S] + lane, count)..., typename Total::Vector(0)};
    rule_(v[I]..., totals[S]...);
    (lists_.template store_rest<I>(v[I], at, count), ...);
    if constexpr (BlockLists::kCopies) lists_.store_copy_rest(v[kParam], at, count);
    (Total::store_first(totals[S], block_.sums[S] + lane, count), ...);
  }

  // Copies of the arguments: stores to elements cannot change them, so the compiler keeps them in registers.
  const Rule rule_;
  const Block<Rule> block_;
  const BlockLists lists_;
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
// all lists are float32; remainders beside bfloat16 or float32 gradients; parameters and gradients of 16 bits with float32
// moments; and conversions from one list to another.
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
  if (copy == Storage::like_first) {
    return rules::kHasMoments<Rule> && Set::kLanes > 1 && first != Storage::real && others == Storage::real;
  }
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

template <class Set, class Rule, int kFirst, int kCopy>
constexpr RunCodedBlock<Rule> coded_kernel() {
  constexpr auto first = static_cast<Storage>(kFirst), copy = static_cast<Storage>(kCopy);
  if constexpr (is_made<Set, Rule>(first, Storage::real, copy)) {
    return CodedLoop<Set, Rule, first, copy>::run;
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
  if constexpr (rules::kHasMoments<Rule>) {
    ((slot.run_coded[kMix / kLastTwo][kMix % kLast] = coded_kernel<Set, Rule, kMix / kLastTwo, kMix % kLast>()), ...);
  }
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
