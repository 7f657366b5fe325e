#include <apex_cpp/amp/doctor/agreement.h>

#include <cmath>
#include <limits>

namespace apex::amp::detail {

Agreement agreement(const at::Tensor& x, const at::Tensor& y) {
  Agreement result;
  result.sqnr = std::numeric_limits<double>::infinity();
  if (!x.defined() || !y.defined() || x.sizes() != y.sizes()) return result;
  const at::Tensor want = x.to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor got = y.to(at::kCPU, at::kDouble).contiguous();
  const auto* wanted = want.const_data_ptr<double>();
  const auto* found = got.const_data_ptr<double>();
  double signal = 0, noise = 0;
  int64_t values = 0, lost = 0;
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double value = wanted[i], error = value - found[i];
    if (!std::isfinite(value)) continue;
    if (!std::isfinite(found[i])) {
      ++result.nonfinite;
      continue;
    }
    signal += value * value;
    noise += error * error;
    values += value != 0;
    lost += value != 0 && found[i] == 0;
  }
  if (signal > 0 && noise > 0) result.sqnr = 10 * std::log10(signal / noise);
  if (values > 0) result.lost = static_cast<double>(lost) / static_cast<double>(values);
  return result;
}

}  // namespace apex::amp::detail
