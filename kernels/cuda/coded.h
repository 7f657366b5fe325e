#pragma once

#include "kernels/cuda/packs.h"
#include "kernels/rules/quantized.h"

namespace apex::kernels::cuda {

// Applies a rule whose moments are stored in 8 bits (rules/quantized.h). A thread processes a whole group, pack by pack, since
// the scale of its codes depends on all of its moments. kCopied and kSplit: as in Apply.
template <class Rule, int kCopied, bool kSplit>
class ApplyCoded {
  static constexpr int kValues = static_cast<int>(rules::kValues<Rule>), kMean = Rule::kMean, kSquare = Rule::kSquare;
  static constexpr int kElements = static_cast<int>(rules::kGroup), kPacks = kElements / kPack;
  static_assert(kValues == 4 && kMean == 2 && kSquare == 3, "gradients, parameters and two moments");

  // The lists of a row, of which packs start at the first element of a group.
  struct Lists {
    void* const* data;
    const Row* row;

    DEVICE_BODY Dtype dtype(int list) const { return row->dtypes[list]; }
    DEVICE_BODY int remainders() const { return row->remainders(); }
    DEVICE_BODY bool is_aligned(int list) const { return row->shift == 0 && row->is_aligned(list); }
  };

 public:
  // Processes groups first, first + step, ... of a part. `key`: of the tensor's random numbers.
  DEVICE_BODY static void to(const Rule& rule, const Part& part, int64_t first, int64_t step, uint32_t key) {
    const int64_t groups = rules::group_count(part.size);
    for (int64_t i = first; i < groups; i += step) {
      const int64_t begin = part.begin + i * rules::kGroup;
      to_group(rule, *part.row, begin, smaller(rules::kGroup, part.begin + part.size - begin), key);
    }
  }

 private:
  DEVICE_BODY static uint8_t* codes(const Row& row, int list, int64_t at) { return static_cast<uint8_t*>(row.data[list]) + at; }
  DEVICE_BODY static uint8_t& exponent(const Row& row, int list, int64_t at) {
    return *codes(row, list, rules::group_count(row.numel) * rules::kGroup + at / rules::kGroup);
  }

  DEVICE_BODY static void to_group(const Rule& rule, const Row& row, int64_t begin, int64_t size, uint32_t key) {
    const Lists lists{row.data, &row};
    uint8_t of_means[kElements], of_squares[kElements];
    load_codes(lists, kMean, begin, of_means);
    load_codes(lists, kSquare, begin, of_squares);
    const float mean_scale = rules::scale_of(exponent(row, kMean, begin));
    const float square_scale = rules::scale_of(exponent(row, kSquare, begin));
    float means[kElements], roots[kElements];
    UNROLL for (int p = 0; p < kPacks; ++p) {
      // Behind the tensor's last element are codes of zero. A pack's moments are decoded here, so that few are in registers.
      float* const pack_means = means + p * kPack;
      float squares[kPack];
      UNROLL for (int i = 0; i < kPack; ++i) {
        pack_means[i] = rules::mean_of_code(static_cast<int8_t>(of_means[p * kPack + i]), mean_scale);
        squares[i] = rules::square_of_code(of_squares[p * kPack + i], square_scale);
      }
      const int64_t left = size - p * kPack;
      const Pack<kPack> pack{begin + p * kPack, 0, static_cast<int>(smaller(kPack, left > 0 ? left : 0))};
      to_pack(rule, lists, pack, pack_means, squares, roots + p * kPack);
    }
    write_codes<false>(lists, kMean, begin, means, 1.0f, key);
    write_codes<true>(lists, kSquare, begin, roots, rule.correction_root, key);
  }

  DEVICE_BODY static void to_pack(const Rule& rule, const Lists& lists, const Pack<kPack>& pack, float* means, float* squares,
                                  float* roots) {
    Bits<float, kPack> grad_bits[1], param_bits[1], remainder_bits[1];
    const auto pack_of = [&](int) { return pack; };
    float grads[kPack], params[kPack];
    load(lists, 0, pack_of, grad_bits);
    load(lists, kCopied, pack_of, param_bits);
    convert(grad_bits[0], lists.dtype(0), grads);
    if constexpr (kSplit) {
      load_remainders(lists, kValues, pack_of, remainder_bits);
      join(param_bits[0], remainder_bits[0], lists.remainders(), params);
    } else {
      convert(param_bits[0], lists.dtype(kCopied), params);
    }
    UNROLL for (int i = 0; i < kPack; ++i) roots[i] = rule.update(grads[i], params[i], means[i], squares[i]);
    if constexpr (kSplit) {
      split(params, lists, kCopied, kValues, pack);
    } else {
      store(params, lists, kCopied, pack);
      if (lists.data[kValues] != nullptr) store(params, lists, kValues, pack);
    }
  }

  DEVICE_BODY static void load_codes(const Lists& lists, int list, int64_t begin, uint8_t (&into)[kElements]) {
    const uint8_t* const from = codes(*lists.row, list, begin);
    if (lists.is_aligned(list)) {
      uint32_t words[kElements / sizeof(uint32_t)];
      load_bytes<kElements>(from, words);
      memcpy(into, words, sizeof words);
    } else {
      UNROLL for (int i = 0; i < kElements; ++i) into[i] = from[i];
    }
  }

  // `values`: means or roots of squares, divided by `factor`.
  template <bool kSquares>
  DEVICE_BODY static void write_codes(const Lists& lists, int list, int64_t begin, const float* values, float factor,
                                      uint32_t key) {
    uint32_t largest = 0;
    UNROLL for (int i = 0; i < kElements; ++i) {
      const uint32_t magnitude = rules::to_bits(values[i]) & ~rules::detail::kSign;
      largest = magnitude > largest ? magnitude : largest;
    }
    const rules::GroupScale scale(largest, factor);
    uint8_t stored[kElements];
    UNROLL for (int i = 0; i < kElements; ++i) {
      const uint32_t random = rules::mixed(key + static_cast<uint32_t>(begin) + static_cast<uint32_t>(i));
      stored[i] = !rules::has_codes(scale.exponent) ? uint8_t{0} : code<kSquares>(values[i], scale.inverse, random);
    }
    exponent(*lists.row, list, begin) = static_cast<uint8_t>(scale.exponent);
    store_codes(stored, lists, list, begin);
  }

  template <bool kSquares>
  DEVICE_BODY static uint8_t code(float value, float inverse, uint32_t random) {
    if constexpr (kSquares) {
      return rules::square_code(value, inverse, static_cast<int>(rules::distance_of_square(random)));
    } else {
      return static_cast<uint8_t>(rules::mean_code(value, inverse, static_cast<int>(rules::distance_of_mean(random))));
    }
  }

  DEVICE_BODY static void store_codes(const uint8_t (&stored)[kElements], const Lists& lists, int list, int64_t begin) {
    uint8_t* const to = codes(*lists.row, list, begin);
    if (lists.is_aligned(list)) {
      uint32_t words[kElements / sizeof(uint32_t)];
      memcpy(words, stored, sizeof words);
      store_bytes<kElements>(words, to);
    } else {
      UNROLL for (int i = 0; i < kElements; ++i) to[i] = stored[i];
    }
  }
};

}  // namespace apex::kernels::cuda
