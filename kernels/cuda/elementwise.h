#pragma once

#include "kernels/cuda/packs.h"
#include "kernels/rules/scale.h"

#include <utility>

namespace apex::kernels::cuda {

constexpr int kNoCopy = -1;

// Applies a rule to packs of elements: loads the values that the rule reads, and stores its results. If the row has one
// more list than the rule has values, value kCopied is stored there too. Element i adds to sums[s][i % kStride].
template <class Rule, int kCopied, int kStride>
class Apply {
  using Real = typename Rule::Real;
  static constexpr int kValues = static_cast<int>(rules::kValues<Rule>);
  using ValueIndices = std::make_index_sequence<rules::kValues<Rule>>;
  using SumIndices = std::make_index_sequence<Rule::kSums>;
  // Packs that are loaded together: enough to keep the memory busy with few threads, and few enough to stay in registers.
  static constexpr int kMost = 16 / static_cast<int>(sizeof(Real));
  static constexpr int kTogether = kValues >= kMost ? 1 : kMost / kValues;

 public:
  using Sums = rules::SumReal<Rule>[Rule::kSums + 1][kStride];

  // Processes packs first, first + step, ... of a part, in this order.
  DEVICE_BODY static void to(const Rule& rule, const Part& part, int64_t first, int64_t step, Sums& sums) {
    const int64_t count = pack_count(part);
    for (int64_t i = first; i < count; i += kTogether * step) {
      Bits<Real> bits[kTogether][kValues];
      UNROLL for (int j = 0; j < kTogether; ++j) load_all(*part.row, pack_at(part, i + j * step), bits[j], ValueIndices());
      UNROLL for (int j = 0; j < kTogether; ++j) to_pack(rule, *part.row, pack_at(part, i + j * step), bits[j], sums);
    }
  }

 private:
  DEVICE_BODY static void to_pack(const Rule& rule, const Row& row, const Pack& pack, const Bits<Real> (&bits)[kValues],
                                  Sums& sums) {
    Real values[kValues][kWidth];
    convert_all(bits, row, values, ValueIndices());
    UNROLL for (int i = 0; i < kWidth; ++i) {
      if (pack.has(i)) apply(rule, i, values, sums, ValueIndices(), SumIndices());
    }
    store_all(values, row, pack, ValueIndices());
    if constexpr (kCopied != kNoCopy) {
      if (row.data[kValues] != nullptr) store(values[kCopied], row, kValues, pack);
    }
  }

  template <size_t... V>
  DEVICE_BODY static void load_all(const Row& row, const Pack& pack, Bits<Real> (&bits)[kValues], std::index_sequence<V...>) {
    (load_one<V>(row, pack, bits[V]), ...);
  }

  template <size_t V>
  DEVICE_BODY static void load_one(const Row& row, const Pack& pack, Bits<Real>& bits) {
    if constexpr (rules::is_read(Rule::kUses[V])) load(row, static_cast<int>(V), pack, bits);
  }

  template <size_t... V>
  DEVICE_BODY static void convert_all(const Bits<Real> (&bits)[kValues], const Row& row, Real (&values)[kValues][kWidth],
                                      std::index_sequence<V...>) {
    (convert_one<V>(bits[V], row, values[V]), ...);
  }

  template <size_t V>
  DEVICE_BODY static void convert_one(const Bits<Real>& bits, const Row& row, Real (&values)[kWidth]) {
    if constexpr (rules::is_read(Rule::kUses[V])) convert(bits, row.dtypes[V], values);
  }

  template <size_t... V, size_t... S>
  DEVICE_BODY static void apply(const Rule& rule, int i, Real (&values)[kValues][kWidth], Sums& sums, std::index_sequence<V...>,
                                std::index_sequence<S...>) {
    rule(values[V][i]..., sums[S][i % kStride]...);
  }

  template <size_t... V>
  DEVICE_BODY static void store_all(const Real (&values)[kValues][kWidth], const Row& row, const Pack& pack,
                                    std::index_sequence<V...>) {
    (store_one<V>(values[V], row, pack), ...);
  }

  template <size_t V>
  DEVICE_BODY static void store_one(const Real (&values)[kWidth], const Row& row, const Pack& pack) {
    if constexpr (rules::is_written(Rule::kUses[V])) store(values, row, static_cast<int>(V), pack);
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
