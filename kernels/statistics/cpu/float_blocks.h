#pragma once

#include "kernels/statistics/cpu/make_blocks.h"

// Counts whole blocks of float32 with byte vectors. A table is incremented one value at a time, but comparisons handle a whole
// vector. So each value is first reduced to a key of one byte, its biased exponent. The values of a block have few different
// exponents, so the block is compared with each key that occurs. The count of a key goes to the bin of nearly all values with
// that key; rare values (a power of two, just below a power of two, subnormal) are then moved to their own bins one by one.
// Blocks with Inf, NaN, too many exponents or too many rare values are counted like other dtypes. `Set`, local to a source
// file, defines for one instruction set:
//   Bytes                a vector of kBytes bytes, at most 64; load, splat, min, max, minus (modulo 256)
//   Counter              counts how many bytes of the vectors of a block equal a key; add, total
//   find_keys            the keys of kBytes values, in any order; returns one bit per value, set if rare, in order
//   LaneSums             the sums of kWide lanes over finite values, as in add_row; load, add, store
namespace apex::kernels::statistics::cpu {
namespace {

// With more exponents or more rare values in a block, comparing is slower than table increments.
constexpr int kMostCompared = 64;
constexpr int kMostRare = kBlock / 4;
constexpr int kNonfinite = 255;  // the key of Inf and NaN

// Key 0 is zero; each other key is the range between two powers of two.
constexpr int bin_of_key(int key) { return key == 0 ? 0 : (key + Format<float>::kMantissa) * kParts + 1; }

template <class Set>
struct Keys {
  alignas(64) uint8_t of[kBlock];
  uint64_t rare[kBlock / Set::kBytes];
  int rare_count = 0;
};

template <class Set>
void find_keys(const float* values, Keys<Set>& keys) {
  for (int i = 0; i < kBlock; i += Set::kBytes) {
    const uint64_t rare = Set::find_keys(values + i, keys.of + i);
    keys.rare[i / Set::kBytes] = rare;
    keys.rare_count += __builtin_popcountll(rare);
  }
}

struct KeyRange {
  int first, last;
};

// The range of the nonzero keys; last < first if there are none.
template <class Set>
KeyRange range_of(const Keys<Set>& keys) {
  const auto one = Set::splat(1);
  auto first = Set::splat(255), last = Set::splat(0);  // of key - 1, and of key
  for (int i = 0; i < kBlock; i += Set::kBytes) {
    const auto some = Set::load(keys.of + i);
    first = Set::min(first, Set::minus(some, one));
    last = Set::max(last, some);
  }
  uint8_t firsts[Set::kBytes], lasts[Set::kBytes];
  memcpy(firsts, &first, sizeof firsts);
  memcpy(lasts, &last, sizeof lasts);
  KeyRange range{256, 0};
  for (int i = 0; i < Set::kBytes; ++i) {
    range.first = firsts[i] + 1 < range.first ? firsts[i] + 1 : range.first;
    range.last = lasts[i] > range.last ? lasts[i] : range.last;
  }
  return range;
}

// kKeys is limited by the number of registers.
template <int kKeys, class Set>
void compare_with(int first, const Keys<Set>& keys, TileState<float>& state) {
  typename Set::Counter counters[kKeys];
  for (int i = 0; i < kBlock; i += Set::kBytes) {
    const auto some = Set::load(keys.of + i);
    for (int k = 0; k < kKeys; ++k) counters[k].add(some, Set::splat(first + k));
  }
  for (int k = 0; k < kKeys; ++k) state.counts[0][bin_of_key(first + k)] += counters[k].total();
}

template <class Set>
void count_keys(const KeyRange& range, const Keys<Set>& keys, TileState<float>& state) {
  compare_with<1>(0, keys, state);
  if (range.last < range.first) return;
  int key = range.first;
  for (; key + 7 <= range.last; key += 8) compare_with<8>(key, keys, state);
  const int rest = range.last + 1 - key;
  if (rest & 4) compare_with<4>(key, keys, state);
  if (rest & 2) compare_with<2>(key + (rest & 4), keys, state);
  if (rest & 1) compare_with<1>(range.last, keys, state);
}

template <class Set>
void move_rare(const float* values, const Keys<Set>& keys, TileState<float>& state) {
  for (int group = 0; group < kBlock / Set::kBytes; ++group) {
    for (uint64_t rare = keys.rare[group]; rare != 0; rare &= rare - 1) {
      const uint32_t magnitude = magnitude_of<float, ThisFile>(values[group * Set::kBytes + __builtin_ctzll(rare)]);
      --state.counts[0][bin_of_key(static_cast<int>(magnitude >> Format<float>::kMantissa))];
      ++state.counts[1][bin_of<float, ThisFile>(magnitude)];
    }
  }
}

// As add_row, for a block of finite values: the sums of some lanes stay in registers over all rows.
template <class Set>
void add_finite_rows(const float* values, TileState<float>& state) {
  using Sums = typename Set::LaneSums;
  constexpr int kVectors = 4, kStep = kVectors * Sums::kWide;
  for (int first = 0; first < kLanes; first += kStep) {
    Sums lanes[kVectors];
    for (int i = 0; i < kVectors; ++i) lanes[i].load(state, first + i * Sums::kWide);
    for (int row = first; row < kBlock; row += kLanes) {
      for (int i = 0; i < kVectors; ++i) lanes[i].add(values + row + i * Sums::kWide);
    }
    for (int i = 0; i < kVectors; ++i) lanes[i].store(state, first + i * Sums::kWide);
  }
}

template <class Set>
void add_float_block(const float* values, int size, TileState<float>& state) {
  if (size < kBlock) return add_block(values, size, state);
  Keys<Set> keys;
  find_keys(values, keys);
  const KeyRange range = range_of(keys);
  const bool is_narrow = range.last - range.first < kMostCompared && range.last < kNonfinite;
  if (!is_narrow || keys.rare_count > kMostRare) return add_block(values, size, state);
  count_keys(range, keys, state);
  move_rare(values, keys, state);
  add_finite_rows<Set>(values, state);
}

template <class Set>
constexpr BlockTable make_blocks() {
  return {add_float_block<Set>, add_block<double>};
}

}  // namespace
}  // namespace apex::kernels::statistics::cpu
