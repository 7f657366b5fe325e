// Eight values at a time, in two registers of four. Every 64-bit ARM processor has these instructions.
#include <arm_neon.h>

#include "kernels/cpu/isa/make_table.h"
#include "kernels/rules/moments.h"

namespace apex::kernels::cpu {
namespace {

struct Floats {
  float32x4_t low, high;

  Floats(float32x4_t first_four, float32x4_t last_four) : low(first_four), high(last_four) {}
  explicit Floats(float value) : low(vdupq_n_f32(value)), high(low) {}
};

inline Floats add(Floats a, Floats b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline Floats subtract(Floats a, Floats b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline Floats multiply(Floats a, Floats b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline Floats divide(Floats a, Floats b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline Floats divide(Floats a, const rules::Divisor& by) { return divide(a, Floats(by.value)); }
inline Floats square_root(Floats a) { return {vsqrtq_f32(a.low), vsqrtq_f32(a.high)}; }

// Eight sums.
struct Doubles {
  float64x2_t pairs[4];

  Doubles(float64x2_t a, float64x2_t b, float64x2_t c, float64x2_t d) : pairs{a, b, c, d} {}
  explicit Doubles(double value) : Doubles(vdupq_n_f64(value), vdupq_n_f64(value), vdupq_n_f64(value), vdupq_n_f64(value)) {}
};

inline Doubles add(Doubles a, Doubles b) {
  return {vaddq_f64(a.pairs[0], b.pairs[0]), vaddq_f64(a.pairs[1], b.pairs[1]), vaddq_f64(a.pairs[2], b.pairs[2]),
          vaddq_f64(a.pairs[3], b.pairs[3])};
}
inline Doubles widen(Floats a) {
  return {vcvt_f64_f32(vget_low_f32(a.low)), vcvt_high_f64_f32(a.low), vcvt_f64_f32(vget_low_f32(a.high)),
          vcvt_high_f64_f32(a.high)};
}

float32x4_t at_most(float32x4_t a, float32x4_t largest) { return vbslq_f32(vcltq_f32(a, largest), a, largest); }
inline Floats at_most(Floats a, Floats largest) { return {at_most(a.low, largest.low), at_most(a.high, largest.high)}; }

float32x4_t larger_magnitude(float32x4_t a, float32x4_t b) {
  const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
  const uint32x4_t a_bits = vandq_u32(vreinterpretq_u32_f32(a), magnitude);
  const uint32x4_t b_bits = vandq_u32(vreinterpretq_u32_f32(b), magnitude);
  return vreinterpretq_f32_u32(vmaxq_u32(a_bits, b_bits));
}
inline Floats larger_magnitude(Floats a, Floats b) {
  return {larger_magnitude(a.low, b.low), larger_magnitude(a.high, b.high)};
}

float32x4_t sign(float32x4_t a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a), magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
  const uint32x4_t one = vbslq_u32(vdupq_n_u32(0x80000000), bits, vdupq_n_u32(0x3f800000));
  const uint32x4_t or_zero = vandq_u32(one, vtstq_u32(magnitude, magnitude));
  return vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(magnitude, vdupq_n_u32(0x7f800000)), bits, or_zero));
}
inline Floats sign(Floats a) { return {sign(a.low), sign(a.high)}; }

float16x8_t to_half(Floats a) { return vcvt_high_f16_f32(vcvt_f16_f32(a.low), a.high); }
Floats from_half(float16x8_t a) { return {vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a)}; }

inline Floats round_to_half(Floats a) { return from_half(to_half(a)); }

inline float32x4_t round_at_random(float32x4_t a, uint32_t key) {
  return vreinterpretq_f32_u32(rules::round_bits_at_random(vreinterpretq_u32_f32(a), key));
}
inline Floats round_at_random(Floats a, uint32_t key) { return {round_at_random(a.low, key), round_at_random(a.high, key)}; }

// Rounds each value to bfloat16, which is then in the upper half of its word.
uint32x4_t rounded_words(float32x4_t v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  return vbslq_u32(vceqq_f32(v, v), rounded, vdupq_n_u32(0x7fc00000));
}

uint16x8_t to_bfloat16(Floats a) { return vshrn_high_n_u32(vshrn_n_u32(rounded_words(a.low), 16), rounded_words(a.high), 16); }

Floats from_bfloat16(uint16x8_t a) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(a), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(a, 16))};
}

struct Neon : Bytes<8> {
  using OfBFloat16 = Neon;
  using Real = float;
  using Vector = Floats;
  static constexpr int64_t kLanes = 8;

  static Floats load(const float* from) { return {vld1q_f32(from), vld1q_f32(from + 4)}; }
  static Floats load(const rules::Half* from) { return from_half(vreinterpretq_f16_u16(vld1q_u16(&from->bits))); }
  static Floats load(const rules::BFloat16* from) { return from_bfloat16(vld1q_u16(&from->bits)); }

  static void store(Floats a, float* to) {
    vst1q_f32(to, a.low);
    vst1q_f32(to + 4, a.high);
  }
  static void store(Floats a, rules::Half* to) { vst1q_u16(&to->bits, vreinterpretq_u16_f16(to_half(a))); }
  static void store(Floats a, rules::BFloat16* to) { vst1q_u16(&to->bits, to_bfloat16(a)); }

  // These processors stream long runs of ordinary stores past their caches by themselves.
  template <class Element>
  static void stream(Floats a, Element* to) {
    store(a, to);
  }
  static void fence() {}

  struct Wide {
    using Vector = Doubles;
    static constexpr int64_t kLanes = Neon::kLanes;
    static Doubles load(const double* from) {
      return {vld1q_f64(from), vld1q_f64(from + 2), vld1q_f64(from + 4), vld1q_f64(from + 6)};
    }
    static void store(Doubles a, double* to) {
      for (int pair = 0; pair < 4; ++pair) vst1q_f64(to + 2 * pair, a.pairs[pair]);
    }
    static Doubles load_first(const double* from, int64_t count) { return load_copied<Wide>(from, count); }
    static void store_first(Doubles a, double* to, int64_t count) { store_copied<Wide>(a, to, count); }
  };

  static Floats load_first(const float* from, int64_t count) { return load_copied<Neon>(from, count); }
  static void store_first(Floats a, float* to, int64_t count) { store_copied<Neon>(a, to, count); }
};

}  // namespace

constexpr KernelTable kNeonKernels = make_table<Neon>();

}  // namespace apex::kernels::cpu
