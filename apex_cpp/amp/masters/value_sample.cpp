#include <apex_cpp/amp/masters/value_sample.h>

#include <cstring>

namespace apex::amp::detail {
namespace {

// A cache line each: little beside a step, which reads and writes all of the tensor.
constexpr int64_t kSamples = 128;

}  // namespace

uint64_t ValueSample::hash_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.element_size() != sizeof(uint16_t) || !tensor.is_non_overlapping_and_dense()) return 0;
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  const int64_t numel = tensor.numel(), step = (numel + kSamples - 1) / kSamples;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, 16 bits at a time
  for (int64_t i = 0; i < numel; i += step) {
    uint16_t value = 0;
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(value)), sizeof(value));
    hash = (hash ^ value) * 0x100000001b3;
  }
  return hash;
}

}  // namespace apex::amp::detail
