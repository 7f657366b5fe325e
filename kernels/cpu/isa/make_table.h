#pragma once

#include <utility>

#include "kernels/cpu/kernel_table.h"

// Loops over blocks, for source files that each define a set of vector operations `Set`:
//   Set::Vector          the type that rules compute with, kLanes values of type Set::Real wide
//   load, store          a vector, from and to memory of values or of 16-bit elements, aligned or not
//   load_first, store_first   only the first `count` < kLanes values
//   stream          a vector past the caches, to aligned memory of 16-bit elements; fence() ends a row of them
// `Set` is local to its source file, and so is all that is made from it here.
namespace apex::kernels::cpu {

template <class Set, class Rule, size_t... I>
void run_block(Rule rule, typename Set::Real* const* values, int64_t size, std::index_sequence<I...>) {
  using Vector = typename Set::Vector;
  typename Set::Real* const at[] = {values[I]...};
  // Sums stand behind the values, and are always written.
  constexpr bool kWritten[] = {(I >= rules::kValues<Rule> || rules::is_written(Rule::kUses[I % rules::kValues<Rule>]))...};
  constexpr bool kRead[] = {(I >= rules::kValues<Rule> || rules::is_read(Rule::kUses[I % rules::kValues<Rule>]))...};
  int64_t i = 0;
  for (; i + Set::kLanes <= size; i += Set::kLanes) {
    Vector v[] = {(kRead[I] ? Set::load(at[I] + i) : Vector(0))...};
    rule(v[I]...);
    ((kWritten[I] ? Set::store(v[I], at[I] + i) : void()), ...);
  }
  if (i == size) return;
  const int64_t rest = size - i;
  Vector v[] = {(kRead[I] ? Set::load_first(at[I] + i, rest) : Vector(0))...};
  rule(v[I]...);
  ((kWritten[I] ? Set::store_first(v[I], at[I] + i, rest) : void()), ...);
}

template <class Set, class Rule>
void run(const Rule& rule, typename Set::Real* const* values, int64_t size) {
  run_block<Set>(rule, values, size, std::make_index_sequence<rules::kValues<Rule> + Rule::kSums>());
}

template <class Set, class Storage>
void read(const void* stored, typename Set::Real* __restrict values, int64_t size) {
  const Storage* __restrict from = static_cast<const Storage*>(stored);
  int64_t i = 0;
  for (; i + Set::kLanes <= size; i += Set::kLanes) Set::store(Set::load(from + i), values + i);
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
  Set::fence();
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
           stream<Set, rules::Half>, stream<Set, rules::BFloat16>}};
}

}  // namespace apex::kernels::cpu
