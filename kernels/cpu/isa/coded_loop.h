#pragma once

#include "kernels/cpu/isa/lists.h"
#include "kernels/rules/quantized.h"

// The loop of a rule with moments in 8 bits, group by group.
namespace apex::kernels::cpu {

// For sets of one lane; vectors have their own.
using rules::larger_magnitude;

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

  // What a group's codes are made of: means, and the roots of squares as the rule returns them.
  struct Group {
    alignas(64) float means[kGroup], roots[kGroup];
    Ints largest_mean{}, largest_root{};  // the bits of their magnitudes, lane by lane
  };

  // Of the codes that are read.
  struct Scales {
    Vector mean, square;

    Scales(const Codes& codes, int64_t at)
        : mean(rules::scale_of(codes.mean_exponents[at / kGroup])),
          square(rules::scale_of(codes.square_exponents[at / kGroup])) {}
  };

  // Groups that the rule is applied to before any is written. A processor then need not wait for a group's last root.
  static constexpr int64_t kAtOnce = 4;

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
    for (; at + kAtOnce * kGroup <= block_.size; at += kAtOnce * kGroup) apply_to_groups<kStreams, kAtOnce>(at);
    for (; at + kGroup <= block_.size; at += kGroup) apply_to_groups<kStreams, 1>(at);
    if (at < block_.size) apply_to_rest(at);
  }

  template <bool kStreams, int64_t kCount>
  [[gnu::always_inline]] void apply_to_groups(int64_t begin) const {
    Group groups[kCount];
    for (int64_t g = 0; g < kCount; ++g) {
      const int64_t at = begin + g * kGroup;
      const Scales scales(codes_, at);
      for (int64_t i = 0; i < kGroup; i += kLanes) apply<kStreams>(groups[g], scales, at, i);
    }
    for (int64_t g = 0; g < kCount; ++g) write(groups[g], begin + g * kGroup);
  }

  template <bool kStreams>
  [[gnu::always_inline]] void apply(Group& group, const Scales& scales, int64_t at, int64_t i) const {
    lists_.template prefetch<0>(at + i, at + i + block_.ahead.read);
    lists_.template prefetch<kParam>(at + i, at + i + block_.ahead.read);
    Vector grad = lists_.template load<0>(at + i), param = lists_.template load<kParam>(at + i);
    update(group, scales, at, i, grad, param);
    lists_.template store<kParam>(param, at + i);
    if constexpr (BlockLists::kCopies) lists_.template store_copy<kStreams>(param, at + i);
  }

  // The last group of a tensor, of which the first elements exist. The others have codes of zero.
  [[gnu::always_inline]] void apply_to_rest(int64_t at) const {
    Group group{};
    const Scales scales(codes_, at);
    int64_t i = 0;
    for (; at + i + kLanes <= block_.size; i += kLanes) apply<false>(group, scales, at, i);
    if (const int64_t count = block_.size - at - i; count > 0) {
      Vector grad = lists_.template load_rest<0>(at + i, count), param = lists_.template load_rest<kParam>(at + i, count);
      update(group, scales, at, i, grad, param);
      lists_.template store_rest<kParam>(param, at + i, count);
      if constexpr (BlockLists::kCopies) lists_.store_copy_rest(param, at + i, count);
    }
    write(group, at);
  }

  // Applies the rule to the vector at element `i` of a group.
  [[gnu::always_inline]] void update(Group& group, const Scales& scales, int64_t at, int64_t i, Vector& grad,
                                     Vector& param) const {
    const auto* const mean_codes = reinterpret_cast<const int8_t*>(codes_of(Rule::kMean, at + i));
    Vector mean = rules::mean_at(number_of(Set::load_bytes(mean_codes)), scales.mean);
    Vector square = rules::square_at(number_of(Set::load_bytes(codes_of(Rule::kSquare, at + i))), scales.square);
    const Vector root = rule_.update(grad, param, mean, square);
    Set::store(mean, group.means + i);
    Set::store(root, group.roots + i);
    group.largest_mean = larger(group.largest_mean, mean);
    group.largest_root = larger(group.largest_root, root);
  }

  // Chooses the scales of a group and writes its codes.
  [[gnu::always_inline]] void write(const Group& group, int64_t at) const {
    const rules::GroupScale of_means(largest_of<kLanes>(group.largest_mean), 1.0f);
    const rules::GroupScale of_squares(largest_of<kLanes>(group.largest_root), rule_.correction_root);
    codes_.mean_exponents[at / kGroup] = static_cast<uint8_t>(of_means.exponent);
    codes_.square_exponents[at / kGroup] = static_cast<uint8_t>(of_squares.exponent);
    const Vector inverse_mean(of_means.inverse), inverse_square(of_squares.inverse);
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      const Words random = rules::mixed(counted<Set>() + (codes_.key + static_cast<uint32_t>(at + i)));
      const Vector mean = Set::load(group.means + i), root = Set::load(group.roots + i);
      const Ints of_mean = whole(rules::mean_position(larger_magnitude(mean, mean), inverse_mean));
      const Ints of_root = whole(rules::square_position(root, inverse_square));
      Set::store_bytes(rules::mean_code_at(of_mean, integers(rules::distance_of_mean(random)), bits(mean)),
                       codes_of(Rule::kMean, at + i));
      Set::store_bytes(rules::square_code_at(of_root, integers(rules::distance_of_square(random)), bits(root)),
                       codes_of(Rule::kSquare, at + i));
    }
    if (!rules::has_codes(of_means.exponent)) __builtin_memset(codes_of(Rule::kMean, at), 0, kGroup);
    if (!rules::has_codes(of_squares.exponent)) __builtin_memset(codes_of(Rule::kSquare, at), 0, kGroup);
  }

  uint8_t* codes_of(size_t list, int64_t at) const { return static_cast<uint8_t*>(block_.data[list]) + at; }

  [[gnu::always_inline]] static Ints integers(Words words) { return converted<Set, int32_t>(words); }
  [[gnu::always_inline]] static Ints bits(Vector v) { return integers(bits_of<Set>(v)); }

  // The larger of the bits and those of a vector, without the sign.
  [[gnu::always_inline]] static Ints larger(Ints largest, Vector v) {
    const Ints magnitude = bits(v) & static_cast<int32_t>(~rules::detail::kSign);
    return magnitude > largest ? magnitude : largest;
  }

  [[gnu::always_inline]] static Vector number_of(Ints integers) { return vector_of<Set>(converted<Set, float>(integers)); }

  // Cut to integers.
  [[gnu::always_inline]] static Ints whole(Vector v) {
    Numbers<Set, float> numbers;
    __builtin_memcpy(&numbers, &v, sizeof numbers);
    return converted<Set, int32_t>(numbers);
  }

  // Copies of the arguments: stores to elements cannot change them, so the compiler keeps them in registers.
  const Rule rule_;
  const Block<Rule> block_;
  const Codes codes_;
  const BlockLists lists_;
};

}  // namespace apex::kernels::cpu
