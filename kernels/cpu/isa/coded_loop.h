#pragma once

#include "kernels/cpu/isa/lists.h"
#include "kernels/rules/quantized.h"

// The loop of a rule with moments in 8 bits, group by group.
namespace apex::kernels::cpu {

// For sets of one lane; vectors have their own.
using rules::larger_magnitude;
using rules::multiply;
using rules::square_root;

// The largest of a vector's numbers.
template <int64_t kCount>
[[gnu::always_inline]] inline uint32_t largest_of(const typename NumbersOf<int32_t, kCount>::type& integers) {
  if constexpr (kCount == 1) {
    return static_cast<uint32_t>(integers);
  } else {
    typename NumbersOf<int32_t, kCount / 2>::type halves[2];
    static_assert(sizeof halves == sizeof integers);
    __builtin_memcpy(halves, &integers, sizeof halves);
    return largest_of<kCount / 2>(halves[0] > halves[1] ? halves[0] : halves[1]);
  }
}

// 0, 1, 2, …
template <class Set>
[[gnu::always_inline]] inline Numbers<Set, uint32_t> counted() {
  constexpr uint32_t kCounted[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  static_assert(Set::kLanes <= 16);
  return load_numbers<Set, uint32_t>(kCounted);
}

template <class Set, class Rule, Storage kFirst, Storage kCopy>
class CodedLoop {
  using Vector = typename Set::Vector;
  using Ints = Numbers<Set, int32_t>;
  using Words = Numbers<Set, uint32_t>;
  using BlockLists = Lists<Set, Rule, kFirst, Storage::real, kCopy>;
  static constexpr size_t kParam = BlockLists::kParam;
  static constexpr int64_t kLanes = Set::kLanes, kGroup = rules::kGroup;
  static_assert(rules::kValues<Rule> == 4 && Rule::kMean == 2 && Rule::kSquare == 3, "gradients, parameters and two moments");

  // What a group's codes are made of: means, and the roots of squares.
  struct Group {
    alignas(64) float means[kGroup], roots[kGroup];
    Ints largest_mean{}, largest_root{};  // the bits of their magnitudes, lane by lane
  };

 public:
  static void run(const Rule& rule, const Block<Rule>& block, const Codes& codes) {
    const CodedLoop loop(rule, block, codes);
    BlockLists::streams(block) ? loop.template all<BlockLists::kCopies>() : loop.template all<false>();
  }

 private:
  CodedLoop(const Rule& rule, const Block<Rule>& block, const Codes& codes)
      : rule_(rule), block_(block), codes_(codes), lists_(block) {}

  template <bool kStreams>
  [[gnu::always_inline]] void all() const {
    int64_t at = 0;
    for (; at + kGroup <= block_.size; at += kGroup) {
      Group group;
      for (int64_t i = 0; i < kGroup; i += kLanes) apply<kStreams>(group, at, i);
      write(group, at);
    }
    if (at < block_.size) apply_to_rest(at);
  }

  template <bool kStreams>
  [[gnu::always_inline]] void apply(Group& group, int64_t at, int64_t i) const {
    lists_.template prefetch<0>(at + i, at + i + block_.ahead.read);
    lists_.template prefetch<kParam>(at + i, at + i + block_.ahead.read);
    Vector grad = lists_.template load<0>(at + i), param = lists_.template load<kParam>(at + i);
    update(group, at, i, grad, param);
    lists_.template store<kParam>(param, at + i);
    if constexpr (BlockLists::kCopies) lists_.template store_copy<kStreams>(param, at + i);
  }

  // The last group of a tensor, of which the first elements exist. The others have codes of zero.
  [[gnu::always_inline]] void apply_to_rest(int64_t at) const {
    Group group{};
    int64_t i = 0;
    for (; at + i + kLanes <= block_.size; i += kLanes) apply<false>(group, at, i);
    if (const int64_t count = block_.size - at - i; count > 0) {
      Vector grad = lists_.template load_rest<0>(at + i, count), param = lists_.template load_rest<kParam>(at + i, count);
      update(group, at, i, grad, param);
      lists_.template store_rest<kParam>(param, at + i, count);
      if constexpr (BlockLists::kCopies) lists_.store_copy_rest(param, at + i, count);
    }
    write(group, at);
  }

  // Applies the rule to the vector at element `i` of a group.
  [[gnu::always_inline]] void update(Group& group, int64_t at, int64_t i, Vector& grad, Vector& param) const {
    const Vector mean_scale(rules::scale_of(codes_.mean_exponents[at / kGroup]));
    const Vector square_scale(rules::scale_of(codes_.square_exponents[at / kGroup]));
    Vector mean =
        rules::mean_at(number_of(Set::load_bytes(reinterpret_cast<const int8_t*>(codes_of(Rule::kMean, at + i)))), mean_scale);
    Vector square = rules::square_at(number_of(Set::load_bytes(codes_of(Rule::kSquare, at + i))), square_scale);
    rule_(grad, param, mean, square);
    const Vector root = square_root(square);
    Set::store(mean, group.means + i);
    Set::store(root, group.roots + i);
    group.largest_mean = larger(group.largest_mean, mean);
    group.largest_root = larger(group.largest_root, root);
  }

  // Chooses the scales of a group and writes its codes.
  [[gnu::always_inline]] void write(const Group& group, int64_t at) const {
    const uint32_t of_means = rules::scale_exponent(largest_of<kLanes>(group.largest_mean));
    const uint32_t of_squares = rules::scale_exponent(largest_of<kLanes>(group.largest_root));
    codes_.mean_exponents[at / kGroup] = static_cast<uint8_t>(of_means);
    codes_.square_exponents[at / kGroup] = static_cast<uint8_t>(of_squares);
    const Vector inverse_mean(rules::inverse_scale(of_means)), inverse_square(rules::inverse_scale(of_squares));
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      const Words random = rules::mixed(counted<Set>() + (codes_.key + static_cast<uint32_t>(at + i)));
      const Vector mean = Set::load(group.means + i), root = Set::load(group.roots + i);
      const Vector mean_position = rules::mean_position(larger_magnitude(mean, mean), inverse_mean, distance(random & 0xffffu));
      const Vector square_position = rules::square_position(root, inverse_square, distance(random >> 16));
      Set::store_bytes(rules::mean_code_at(whole(mean_position), bits(mean)), codes_of(Rule::kMean, at + i));
      Set::store_bytes(rules::square_code_at(whole(square_position), bits(root)), codes_of(Rule::kSquare, at + i));
    }
    if (!rules::has_codes(of_means)) __builtin_memset(codes_of(Rule::kMean, at), 0, kGroup);
    if (!rules::has_codes(of_squares)) __builtin_memset(codes_of(Rule::kSquare, at), 0, kGroup);
  }

  uint8_t* codes_of(size_t list, int64_t at) const { return static_cast<uint8_t*>(block_.data[list]) + at; }

  [[gnu::always_inline]] static Ints bits(Vector v) { return converted<Set, int32_t>(bits_of<Set>(v)); }

  // The larger of the bits and those of a vector, without the sign.
  [[gnu::always_inline]] static Ints larger(Ints largest, Vector v) {
    const Ints magnitude = bits(v) & static_cast<int32_t>(~rules::detail::kSign);
    return magnitude > largest ? magnitude : largest;
  }

  [[gnu::always_inline]] static Vector number_of(Ints integers) { return vector_of<Set>(converted<Set, float>(integers)); }
  [[gnu::always_inline]] static Vector distance(Words bits) {
    return multiply(number_of(converted<Set, int32_t>(bits)), Vector(rules::kRandomUnit));
  }

  // Cut to integers; NaN, which has none, becomes the largest.
  [[gnu::always_inline]] static Ints whole(Vector v) {
    Numbers<Set, float> positions;
    __builtin_memcpy(&positions, &v, sizeof positions);
    const auto largest = Numbers<Set, float>{} + rules::kSquareCodes;
    return converted<Set, int32_t>(positions < largest ? positions : largest);
  }

  // Copies of the arguments: stores to elements cannot change them, so the compiler keeps them in registers.
  const Rule rule_;
  const Block<Rule> block_;
  const Codes codes_;
  const BlockLists lists_;
};

}  // namespace apex::kernels::cpu
