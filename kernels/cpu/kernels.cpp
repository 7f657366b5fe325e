#include "kernels/cpu/kernels.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/pass.h"
#include "kernels/cpu/rows.h"
#include "kernels/rules/arithmetic.h"
#include "kernels/rules/norms.h"
#include "kernels/rules/scale.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace apex::kernels::cpu {
namespace {

template <class Stored>
void read_as_double(const void* stored, double* values, int64_t size) {
  for (int64_t i = 0; i < size; ++i) values[i] = rules::load<double>(static_cast<const Stored*>(stored)[i]);
}

template <class Stored>
void write_from_double(const double* values, void* stored, int64_t size) {
  for (int64_t i = 0; i < size; ++i) static_cast<Stored*>(stored)[i] = rules::store<Stored>(values[i]);
}

}  // namespace

const KernelTable& current_kernels() {
  return of_current_isa<kPortableKernels, kAvx2Kernels, kAvx512Kernels, kAvx512Kernels, kNeonKernels>();
}

// Measured. Intel Xeon: Adam takes 1.2 times as long without prefetch; half or twice the distance makes no difference. AMD
// EPYC: prefetching lists that are read costs 5%. Prefetching the list that LAMB only writes, a little ahead, gains 3%; in
// place it costs a third, because it disturbs the hardware prefetcher, while a distance of two pages gains a tenth.
Ahead fetched_ahead([[maybe_unused]] bool in_place) {
#ifdef APEX_CPP_X86_KERNELS
  if (__builtin_cpu_is("amd")) return {0, in_place ? 2048 : 128};
#endif
  return {512, 512};
}

template <>
Reader<float> reader(at::ScalarType dtype) {
  if (dtype == at::kFloat) return nullptr;
  if (dtype == at::kHalf) return current_kernels().conversions.read_half;
  TORCH_INTERNAL_ASSERT(dtype == at::kBFloat16, "no reader for ", dtype);
  return current_kernels().conversions.read_bfloat16;
}

template <>
Writer<float> writer(at::ScalarType dtype) {
  if (dtype == at::kFloat) return nullptr;
  if (dtype == at::kHalf) return current_kernels().conversions.write_half;
  TORCH_INTERNAL_ASSERT(dtype == at::kBFloat16, "no writer for ", dtype);
  return current_kernels().conversions.write_bfloat16;
}

Storage storage_of(at::ScalarType dtype) {
  if (dtype == at::kHalf) return Storage::half;
  if (dtype == at::kBFloat16) return Storage::bfloat16;
  if (dtype == at::kShort) return Storage::remainder16;
  if (dtype == at::kChar) return Storage::remainder8;
  TORCH_INTERNAL_ASSERT(dtype == at::kFloat || dtype == at::kDouble, "no storage for ", dtype);
  return Storage::real;
}

template <>
Reader<double> reader(at::ScalarType dtype) {
  if (dtype == at::kDouble) return nullptr;
  if (dtype == at::kFloat) return read_as_double<float>;
  if (dtype == at::kHalf) return read_as_double<rules::Half>;
  TORCH_INTERNAL_ASSERT(dtype == at::kBFloat16, "no reader for ", dtype);
  return read_as_double<rules::BFloat16>;
}

template <>
Writer<double> writer(at::ScalarType dtype) {
  if (dtype == at::kDouble) return nullptr;
  if (dtype == at::kFloat) return write_from_double<float>;
  if (dtype == at::kHalf) return write_from_double<rules::Half>;
  TORCH_INTERNAL_ASSERT(dtype == at::kBFloat16, "no writer for ", dtype);
  return write_from_double<rules::BFloat16>;
}

namespace {

template <class Math>
bool axpby_as(const plan::Group& group, double a, double b, CheckArg check) {
  bool finite = true;
  for (const auto& [x, y] : run_pass(group, rules::Axpby<Math>{static_cast<Math>(a), static_cast<Math>(b)})) {
    finite &= (check == CheckArg::y || x == 0) && (check == CheckArg::x || y == 0);
  }
  return !finite;
}

}  // namespace

bool axpby(const plan::Group& group, double a, double b, CheckArg check) {
  return group.has_double() ? axpby_as<double>(group, a, b, check) : axpby_as<float>(group, a, b, check);
}

namespace {

void copy_bytes(const plan::Group& group) {
  const auto size = static_cast<int64_t>(c10::elementSize(group.dtypes[0]));
  for_each_chunk(group, [&](int64_t i) {
    const plan::Chunk& chunk = group.chunks[static_cast<size_t>(i)];
    const auto& data = group.rows[static_cast<size_t>(chunk.row)].data;
    const int64_t begin = chunk.offset * size;
    // Both lists may be the same memory, hence memmove.
    std::memmove(static_cast<char*>(data[1]) + begin, static_cast<char*>(data[0]) + begin,
                 static_cast<size_t>(chunk.size * size));
  });
}

}  // namespace

void copy(const plan::Group& group) {
  if (group.dtypes[0] == group.dtypes[1]) return copy_bytes(group);
  group.has_double() ? void(run_pass(group, rules::Copy<double>())) : void(run_pass(group, rules::Copy<float>()));
}

namespace {

// Whether a rule with a residue sum (rules::note_nonfinite) meets a non-finite value.
template <class Rule>
bool finds_nonfinite(const plan::Group& group, const Rule& rule) {
  bool finite = true;
  for (const auto& [residue] : run_pass(group, rule)) finite &= residue == 0;
  return !finite;
}

}  // namespace

bool scale(const plan::Group& group, double factor) {
  return group.has_double() ? finds_nonfinite(group, rules::Scale<double>{factor})
                            : finds_nonfinite(group, rules::Scale<float>{static_cast<float>(factor)});
}

bool has_nonfinite(const plan::Group& group) {
  return group.has_double() ? finds_nonfinite(group, rules::CheckFinite<double>())
                            : finds_nonfinite(group, rules::CheckFinite<float>());
}

namespace {

template <class Rule>
at::Tensor sums_by_index(const plan::Group& group, size_t count, const Rule& rule) {
  const at::Tensor result = at::zeros({static_cast<int64_t>(count)}, at::TensorOptions().dtype(at::kDouble));
  double* const by_index = result.mutable_data_ptr<double>();
  const std::vector<double> rows = row_sums<Rule>(group, run_pass(group, rule));
  for (size_t row = 0; row < rows.size(); ++row) by_index[group.rows[row].index] = rows[row];
  return result;
}

}  // namespace

at::Tensor sums_of_squares(const plan::Group& group, size_t count, double factor) {
  return group.has_double() ? sums_by_index(group, count, rules::SumOfSquares<double>{factor})
                            : sums_by_index(group, count, rules::SumOfSquares<float>{static_cast<float>(factor)});
}

at::Tensor max_magnitudes(const plan::Group& group, size_t count) {
  return group.has_double() ? sums_by_index(group, count, rules::MaxMagnitude<double>())
                            : sums_by_index(group, count, rules::MaxMagnitude<float>());
}

// Does not use at::sqrt, which may be off by a bit.
at::Tensor roots_of(const at::Tensor& sums) {
  const at::Tensor roots = at::empty(sums.sizes(), sums.options().dtype(at::kFloat));
  std::transform(sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel(), roots.mutable_data_ptr<float>(),
                 rules::root_of_sum);
  return roots;
}

double ordered_sum(c10::ArrayRef<double> values) {
  return ordered_fold<rules::Sum>(values.size(), [&](size_t i) { return values[i]; });
}

}  // namespace apex::kernels::cpu
