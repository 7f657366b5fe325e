#pragma once

#include <type_traits>
#include <utility>

#include "kernels/cpu/kernel_table.h"

// Loops over blocks, for source files that each define a set of vector operations `Set`:
//   Set::Vector          the type that rules compute with, kLanes values of type Set::Real wide
//   load, store          a vector, from and to memory of values or of 16-bit elements, aligned or not
//   load_first, store_first   only the first `count` < kLanes values
//   Wide                 Vector, as many float64 sums; load, store, load_first, store_first of them
//   stream          a vector past the caches, to aligned memory of 16-bit elements; fence() comes behind the last of them
// `Set` is local to its source file, and so is all that is made from it here.
namespace apex::kernels::cpu {

// Loops have memory fetched that many elements before they get there, which is far enough for the arithmetic of a rule and the
// fetching to overlap. Measured: without it Adam takes 1.2 times as long; half of it or twice as much makes no difference.
constexpr int64_t kAhead = 512;

// Loops over single values are left to the compiler, which vectorises none with this in it.
template <class Set, class Storage>
inline void fetch(const Storage* from) {
  if constexpr (Set::kLanes > 1) __builtin_prefetch(from + kAhead);
}

// How a row of sums is read and written: as values, or in float64 as Set::Wide.
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

template <class Set, class Rule, size_t... I, size_t... S>
void run_block(Rule rule, typename Set::Real* const* values, rules::SumReal<Rule>* const* sums, int64_t size,
               std::index_sequence<I...>, std::index_sequence<S...>) {
  using Vector = typename Set::Vector;
  using Total = Sums<Set, rules::SumReal<Rule>>;
  typename Set::Real* const at[] = {values[I]...};
  [[maybe_unused]] rules::SumReal<Rule>* const sums_at[] = {sums[S]..., nullptr};
  int64_t i = 0;
  for (; i + Set::kLanes <= size; i += Set::kLanes) {
    (fetch<Set>(at[I] + i), ...);
    Vector v[] = {(rules::is_read(Rule::kUses[I]) ? Set::load(at[I] + i) : Vector(0))...};
    [[maybe_unused]] typename Total::Vector total[] = {Total::load(sums_at[S] + i)..., typename Total::Vector(0)};
    rule(v[I]..., total[S]...);
    ((rules::is_written(Rule::kUses[I]) ? Set::store(v[I], at[I] + i) : void()), ...);
    (Total::store(total[S], sums_at[S] + i), ...);
  }
  if (i == size) return;
  const int64_t rest = size - i;
  Vector v[] = {(rules::is_read(Rule::kUses[I]) ? Set::load_first(at[I] + i, rest) : Vector(0))...};
  [[maybe_unused]] typename Total::Vector total[] = {Total::load_first(sums_at[S] + i, rest)..., typename Total::Vector(0)};
  rule(v[I]..., total[S]...);
  ((rules::is_written(Rule::kUses[I]) ? Set::store_first(v[I], at[I] + i, rest) : void()), ...);
  (Total::store_first(total[S], sums_at[S] + i, rest), ...);
}

template <class Set, class Rule>
void run(const Rule& rule, typename Set::Real* const* values, rules::SumReal<Rule>* const* sums, int64_t size) {
  run_block<Set>(rule, values, sums, size, std::make_index_sequence<rules::kValues<Rule>>(),
                 std::make_index_sequence<Rule::kSums>());
}

template <class Set, class Storage>
void read(const void* stored, typename Set::Real* __restrict values, int64_t size) {
  const Storage* __restrict from = static_cast<const Storage*>(stored);
  int64_t i = 0;
  for (; i + Set::kLanes <= size; i += Set::kLanes) {
    fetch<Set>(from + i);
    Set::store(Set::load(from + i), values + i);
  }
  if (i == size) return;
  Storage last[Set::kLanes] = {};
  __builtin_memcpy(last, from + i, static_cast<size_t>(size - i) * sizeof(Storage));
  Set::store_first(Set::load(last), values + i, size - i);
}

template <class Set, class Storage>
void write(const typename Set::Real* __restrict values, void* stored, int64_t size) {
  Storage* __restrict to = static_cast<Storage*>(stored);
  int64_t i = 0;
  for (; i + Set::kLanes <= size; i += Set::kLanes) Set::store(Set::load(values + i), to + i);
  if (i == size) return;
  Storage last[Set::kLanes];
  Set::store(Set::load_first(values + i, size - i), last);
  __builtin_memcpy(to + i, last, static_cast<size_t>(size - i) * sizeof(Storage));
}

template <class Set, class Storage>
void stream(const typename Set::Real* __restrict values, void* stored, int64_t size) {
  constexpr uintptr_t kBytes = Set::kLanes * sizeof(Storage);
  const auto beyond = reinterpret_cast<uintptr_t>(stored) % kBytes;
  int64_t i = beyond == 0 ? 0 : static_cast<int64_t>((kBytes - beyond) / sizeof(Storage));
  if (i >= size) i = size;
  write<Set, Storage>(values, stored, i);
  Storage* to = static_cast<Storage*>(stored);
  for (; i + Set::kLanes <= size; i += Set::kLanes) Set::stream(Set::load(values + i), to + i);
  write<Set, Storage>(values + i, to + i, size - i);
}

template <class Set, class... Rules>
constexpr RuleTable<Rules...> make_rules(const RuleTable<Rules...>*) {
  return {Slot<Rules>{run<Set, Rules>}...};
}

template <class Set>
constexpr KernelTable make_table() {
  return {make_rules<Set>(static_cast<const FloatRules*>(nullptr)),
          {read<Set, rules::Half>, read<Set, rules::BFloat16>, write<Set, rules::Half>, write<Set, rules::BFloat16>,
           stream<Set, rules::Half>, stream<Set, rules::BFloat16>, Set::fence}};
}

}  // namespace apex::kernels::cpu
