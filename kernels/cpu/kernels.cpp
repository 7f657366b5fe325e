#include "kernels/cpu/kernels.h"

#include <c10/util/Exception.h>

#include "kernels/cpu/isa.h"
#include "kernels/rules/convert.h"

namespace apex::kernels::cpu {
namespace {

// Measured: from here on, where an update of float32 lists moves 1 GiB, it gains 2% from stores past the caches. Smaller ones,
// and plain copies of any size, lose by them.
constexpr int64_t kStreamedElements = int64_t{32} << 20;

template <class Storage>
void read_as_double(const void* stored, double* values, int64_t size) {
  for (int64_t i = 0; i < size; ++i) values[i] = rules::load<double>(static_cast<const Storage*>(stored)[i]);
}

template <class Storage>
void write_from_double(const double* values, void* stored, int64_t size) {
  for (int64_t i = 0; i < size; ++i) static_cast<Storage*>(stored)[i] = rules::store<Storage>(values[i]);
}

}  // namespace

const KernelTable& current_kernels() {
#ifdef APEX_CPP_X86_KERNELS
  if (current_isa() == Isa::avx512) return kAvx512Kernels;
  if (current_isa() == Isa::avx2) return kAvx2Kernels;
#endif
  return kPortableKernels;
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

template <>
Writer<float> copy_writer(at::ScalarType dtype, int64_t numel) {
  if (dtype == at::kFloat || numel < kStreamedElements) return writer<float>(dtype);
  const Conversions<float>& conversions = current_kernels().conversions;
  return dtype == at::kHalf ? conversions.stream_half : conversions.stream_bfloat16;
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

template <>
Writer<double> copy_writer(at::ScalarType dtype, int64_t) {
  return writer<double>(dtype);
}

}  // namespace apex::kernels::cpu
