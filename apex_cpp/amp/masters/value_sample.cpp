#include <apex_cpp/amp/masters/value_sample.h>

#include <cstring>

namespace apex::amp::detail {
namespace {

// A cache line each: little beside a step, which reads and writes all of the tensor.
constexpr int64_t kSamples = 128;

}  // namespace

std::vector<uint16_t> ValueSample::taken_from(const at::Tensor& tensor) {
  std::vector<uint16_t> values;
  if (!tensor.is_cpu() || tensor.element_size() != sizeof(uint16_t) || !tensor.is_non_overlapping_and_dense()) return values;
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  const int64_t step = (tensor.numel() + kSamples - 1) / kSamples;
  values.reserve(kSamples);
  for (int64_t i = 0; i < tensor.numel(); i += step) {
    std::memcpy(&values.emplace_back(), bytes + i * static_cast<int64_t>(sizeof(uint16_t)), sizeof(uint16_t));
  }
  return values;
}

}  // namespace apex::amp::detail
