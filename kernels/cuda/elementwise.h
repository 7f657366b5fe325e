#pragma once

#include "kernels/cuda/packs.h"
#include "kernels/cuda/quick.h"
#include "kernels/rules/scale.h"

#include <utility>

namespace apex::kernels::cuda {

constexpr int kNoCopy = -1;

// Whether a rule divides or takes roots of elements, which the packs of a device compute with Quick.
template <class Rule, class = void>
constexpr bool kDivides = false;
template <class Rule>
constexpr bool kDivides<Rule, std::void_t<decltype(Rule::kDivides)>> = Rule::kDivides;

// Applies a rule to packs of kWidth elements: loads the values that the rule reads, and stores its results. If the row has one
// more list than the rule has values, value kCopied is stored there too; with kSplit this list holds the remainders of that
// value. Element i adds to sums[s][i % kStride]. kKnowsRows: rows of frequent mixes of dtypes have a loop of their own.
template <class Rule, int kCopied, int kWidth, int kStride, bool kKnowsRows, bool kSplit = false>
class Apply {
  using Real = typename Rule::Real;
  using PackBits = Bits<Real, kWidth>;
  static constexpr int kValues = static_cast<int>(rules::kValues<Rule>);
  using ValueIndices = std::make_index_sequence<rules::kValues<Rule>>;
  using SumIndices = std::make_index_sequence<Rule::kSums>;

  static constexpr int kLoaded = kValues + (kSplit ? 1 : 0);

  static constexpr int count_reads() {
    int reads = kSplit ? 1 : 0;
    for (const rules::Use use : Rule::kUses) reads += rules::is_read(use) ? 1 : 0;
    return reads;
  }
  // Packs that are loaded together: enough to keep the memory busy with few threads, and few enough to stay in registers.
  static constexpr int kMost = 32 * static_cast<int>(sizeof(float)) / (count_reads() * static_cast<int>(sizeof(PackBits)));
  static constexpr int kTogether = kMost > 1 ? kMost : 1;

 public:
  using Sums = rules::SumReal<Rule>[Rule::kSums + 1][kStride];

  // Processes packs first, first + step, ... of a part, in this order.
  DEVICE_BODY static void to(const Rule& rule, const Part& part, int64_t first, int64_t step, Sums& sums) {
    const int64_t count = pack_count<kWidth>(part);
    int64_t i = to_known_rows(rule, part, first, step, sums);
    for (; i < count; i += kTogether * step) {
      to_packs(rule, *part.row, sums, [&](int j) { return pack_at<kWidth>(part, i + j * step); });
    }
  }

 private:
  using Together = PackBits[kLoaded][kTogether];

  // Processes whole packs of the frequent mixes of dtypes: one dtype everywhere, or 16 bits beside float32. Returns the index
  // of the first pack that is left.
  DEVICE_BODY static int64_t to_known_rows(const Rule& rule, const Part& part, int64_t first, int64_t step, Sums& sums) {
    if constexpr (kSplit) {
      if (part.row->remainders() == 8) return to_rows<KnownSplitRow<8, kValues>>(rule, part, first, step, sums);
      return to_rows<KnownSplitRow<16, kValues>>(rule, part, first, step, sums);
    } else if constexpr (kKnowsRows) {
      const Dtype dtype = part.row->dtypes[0];
      if (dtype == Dtype::half) return to_rows_of<Dtype::half>(rule, part, first, step, sums);
      if (dtype == Dtype::bfloat16) return to_rows_of<Dtype::bfloat16>(rule, part, first, step, sums);
      return to_rows<KnownRow<Dtype::float32, Dtype::float32, kValues>>(rule, part, first, step, sums);
    } else {
      return first;
    }
  }

  template <Dtype kFirst>
  DEVICE_BODY static int64_t to_rows_of(const Rule& rule, const Part& part, int64_t first, int64_t step, Sums& sums) {
    if (kValues == 1 || part.row->dtypes[1] == kFirst)
      return to_rows<KnownRow<kFirst, kFirst, kValues>>(rule, part, first, step, sums);
    return to_rows<KnownRow<kFirst, Dtype::float32, kValues>>(rule, part, first, step, sums);
  }

  template <class Known>
  DEVICE_BODY static int64_t to_rows(const Rule& rule, const Part& part, int64_t i, int64_t step, Sums& sums) {
    if (!Known::matches(*part.row)) return i;
    const Known row(*part.row);
    const int64_t stride = step * kWidth;
    for (; (i + (kTogether - 1) * step + 1) * kWidth <= part.size; i += kTogether * step) {
      const int64_t start = part.begin + i * kWidth;
      to_packs(rule, row, sums, [&](int j) { return Pack<kWidth>{start + j * stride, 0, kWidth}; });
    }
    return i;
  }

  // pack_of(j): pack j of those that are loaded together.
  template <class Lists, class PackOf>
  DEVICE_BODY static void to_packs(const Rule& rule, const Lists& lists, Sums& sums, const PackOf& pack_of) {
    Together bits;
    load_all(lists, pack_of, bits, ValueIndices());
    if constexpr (kSplit) load_remainders(lists, kValues, pack_of, bits[kValues]);
    UNROLL for (int j = 0; j < kTogether; ++j) to_pack(rule, lists, pack_of(j), bits, j, sums);
  }

  template <class Lists>
  DEVICE_BODY static void to_pack(const Rule& rule, const Lists& lists, const Pack<kWidth>& pack, const Together& bits, int j,
                                  Sums& sums) {
    Real values[kValues][kWidth];
    if constexpr (kDivides<Rule>) {
      Sums before;
      memcpy(before, sums, sizeof sums);
      if (computed_as<Quick>(rule, lists, pack, bits, j, values, sums)) {
        memcpy(sums, before, sizeof sums);
        computed_as<Real>(rule, lists, pack, bits, j, values, sums);
      }
    } else {
      computed_as<Real>(rule, lists, pack, bits, j, values, sums);
    }
    store_all(values, lists, pack, ValueIndices());
    if constexpr (kSplit) {
      if constexpr (rules::is_written(Rule::kUses[kCopied])) split(values[kCopied], lists, kCopied, kValues, pack);
    } else if constexpr (kCopied != kNoCopy) {
      if (lists.data[kValues] != nullptr) store(values[kCopied], lists, kValues, pack);
    }
  }

  // Converts and computes a pack in type V. Returns whether a result is doubtful.
  template <class V, class Lists>
  DEVICE_BODY static bool computed_as(const Rule& rule, const Lists& lists, const Pack<kWidth>& pack, const Together& bits,
                                      int j, Real (&values)[kValues][kWidth], Sums& sums) {
    bool doubtful = false;
    convert_all(bits, j, lists, values, ValueIndices());
    if constexpr (kSplit) join(bits[kCopied][j], bits[kValues][j], lists.remainders(), values[kCopied]);
    if (Rule::kSums == 0 || pack.whole()) {
      UNROLL for (int i = 0; i < kWidth; ++i) doubtful |= apply<V>(rule, i, values, sums, ValueIndices(), SumIndices());
    } else {
      UNROLL for (int i = 0; i < kWidth; ++i) {
        if (pack.has(i)) doubtful |= apply<V>(rule, i, values, sums, ValueIndices(), SumIndices());
      }
    }
    return doubtful;
  }

  template <class Lists, class PackOf, size_t... V>
  DEVICE_BODY static void load_all(const Lists& lists, const PackOf& pack_of, Together& bits, std::index_sequence<V...>) {
    (load_list<V>(lists, pack_of, bits[V]), ...);
  }

  template <size_t V, class Lists, class PackOf>
  DEVICE_BODY static void load_list(const Lists& lists, const PackOf& pack_of, PackBits (&bits)[kTogether]) {
    if constexpr (rules::is_read(Rule::kUses[V])) load(lists, static_cast<int>(V), pack_of, bits);
  }

  template <class Lists, size_t... V>
  DEVICE_BODY static void convert_all(const Together& bits, int j, const Lists& lists, Real (&values)[kValues][kWidth],
                                      std::index_sequence<V...>) {
    (convert_one<V>(bits[V][j], lists, values[V]), ...);
  }

  template <size_t V, class Lists>
  DEVICE_BODY static void convert_one(const PackBits& bits, const Lists& lists, Real (&values)[kWidth]) {
    constexpr bool kIsSplit = kSplit && static_cast<int>(V) == kCopied;
    if constexpr (rules::is_read(Rule::kUses[V]) && !kIsSplit) convert(bits, lists.dtype(static_cast<int>(V)), values);
  }

  template <class T, size_t... V, size_t... S>
  DEVICE_BODY static bool apply(const Rule& rule, int i, Real (&values)[kValues][kWidth], Sums& sums, std::index_sequence<V...>,
                                std::index_sequence<S...>) {
    if constexpr (std::is_same_v<T, Quick>) {
      Quick quick[] = {Quick(values[V][i])...};
      rule(quick[V]..., sums[S][i % kStride]...);
      ((values[V][i] = quick[V].value), ...);
      return (quick[V].doubtful || ...);
    } else {
      rule(values[V][i]..., sums[S][i % kStride]...);
      return false;
    }
  }

  template <class Lists, size_t... V>
  DEVICE_BODY static void store_all(const Real (&values)[kValues][kWidth], const Lists& lists, const Pack<kWidth>& pack,
                                    std::index_sequence<V...>) {
    (store_one<V>(values[V], lists, pack), ...);
  }

  template <size_t V, class Lists>
  DEVICE_BODY static void store_one(const Real (&values)[kWidth], const Lists& lists, const Pack<kWidth>& pack) {
    constexpr bool kIsSplit = kSplit && static_cast<int>(V) == kCopied;
    if constexpr (rules::is_written(Rule::kUses[V]) && !kIsSplit) store(values, lists, static_cast<int>(V), pack);
  }
};

}  // namespace apex::kernels::cuda

// The Ops of multi_tensor_scale, _check_finite, _axpby and _copy. updates.h says what an Op is.
namespace apex::kernels::cuda {

DEVICE_BODY inline void raise(int32_t* flag) {
  if (flag != nullptr) *flag = 1;
}

struct Elementwise {
  static constexpr bool kTakesDoubles = true;
  static constexpr int kCopied = kNoCopy;
  static constexpr bool kSplit = false, kCoded = false;

  DEVICE_BODY bool stopped() const { return false; }
  DEVICE_BODY bool finishes() const { return false; }
  template <class Block>
  DEVICE_BODY void finish(const Block&, const Table&) const {}
};

// A factor: the value at `address` in device memory, or `value` if there is no address.
struct Factor {
  double value = 1.0;
  const float* address = nullptr;

  DEVICE_BODY Factor now() const { return {address == nullptr ? value : double{*address}, nullptr}; }
};

// An Op that raises found_inf if the first sum of its rule is not 0, that is, if an input is not finite.
struct Checked : Elementwise {
  int32_t* found_inf;

  explicit Checked(int32_t* flag) : found_inf(flag) {}

  template <class Residues>
  DEVICE_BODY void report(const Residues& residues) const {
    if (residues[0][0] != 0) raise(found_inf);
  }
};

struct Scale : Checked {
  Factor factor;

  Scale(const Factor& by, int32_t* flag) : Checked(flag), factor(by) {}

  DEVICE_BODY Scale prepared() const {
    Scale result = *this;
    result.factor = factor.now();
    return result;
  }
  template <class Real>
  DEVICE_BODY rules::Scale<Real> rule(const Row&) const {
    return {static_cast<Real>(factor.value)};
  }
};

struct CheckFinite : Checked {
  using Checked::Checked;

  DEVICE_BODY const CheckFinite& prepared() const { return *this; }
  template <class Real>
  DEVICE_BODY rules::CheckFinite<Real> rule(const Row&) const {
    return {};
  }
};

struct Axpby : Elementwise {
  double a, b;
  bool checks_x, checks_y;
  int32_t* found_inf;

  Axpby(double x_factor, double y_factor, bool x, bool y, int32_t* flag)
      : a(x_factor), b(y_factor), checks_x(x), checks_y(y), found_inf(flag) {}

  DEVICE_BODY const Axpby& prepared() const { return *this; }
  template <class Real>
  DEVICE_BODY rules::Axpby<Real> rule(const Row&) const {
    return {static_cast<Real>(a), static_cast<Real>(b)};
  }
  template <class Residues>
  DEVICE_BODY void report(const Residues& residues) const {
    if ((checks_x && residues[0][0] != 0) || (checks_y && residues[1][0] != 0)) raise(found_inf);
  }
};

struct Copy : Elementwise {
  DEVICE_BODY const Copy& prepared() const { return *this; }
  template <class Real>
  DEVICE_BODY rules::Copy<Real> rule(const Row&) const {
    return {};
  }
};

}  // namespace apex::kernels::cuda
