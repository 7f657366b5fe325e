#include "kernels/cpu/blocks.h"

#include <cstring>
#include <type_traits>

#include "kernels/rules/convert.h"

namespace apex::kernels::cpu {
namespace {

template <class Math, class Storage>
const Math* read(const void* data, int64_t offset, int64_t size, Math* __restrict buffer) {
  const Storage* __restrict stored = static_cast<const Storage*>(data) + offset;
  if constexpr (std::is_same_v<Math, Storage>) {
    return stored;
  } else {
    for (int64_t i = 0; i < size; ++i) buffer[i] = rules::load<Math>(stored[i]);
    return buffer;
  }
}

template <class Math, class Storage>
void write(const Math* __restrict values, void* data, int64_t offset, int64_t size) {
  Storage* __restrict stored = static_cast<Storage*>(data) + offset;
  for (int64_t i = 0; i < size; ++i) stored[i] = rules::store<Storage>(values[i]);
}

}  // namespace

template <class Math>
Reader<Math> reader(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return read<Math, rules::Half>;
    case at::kBFloat16:
      return read<Math, rules::BFloat16>;
    case at::kFloat:
      return read<Math, float>;
    case at::kDouble:
      return read<Math, double>;
    default:
      TORCH_INTERNAL_ASSERT(false, "no reader for ", dtype);
  }
}

template <class Math>
Writer<Math> writer(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return write<Math, rules::Half>;
    case at::kBFloat16:
      return write<Math, rules::BFloat16>;
    case at::kFloat:
      return write<Math, float>;
    case at::kDouble:
      return write<Math, double>;
    default:
      TORCH_INTERNAL_ASSERT(false, "no writer for ", dtype);
  }
}

template Reader<float> reader(at::ScalarType);
template Reader<double> reader(at::ScalarType);
template Writer<float> writer(at::ScalarType);
template Writer<double> writer(at::ScalarType);

}  // namespace apex::kernels::cpu
