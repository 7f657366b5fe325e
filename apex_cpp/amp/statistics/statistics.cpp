#include <apex_cpp/amp/statistics/statistics.h>

#include <c10/util/Exception.h>

#include <cmath>

#include <apex_cpp/amp/tensors/listed_once.h>
#include <apex_cpp/amp/tensors/low_precision.h>
#include <apex_cpp/amp/tensors/parameter_names.h>
#include "kernels/statistics/statistics.h"

namespace apex::amp {
namespace {

void check_tensor(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "statistics: '", name,
                    "' is undefined. Leave it out; a parameter has no gradient before the first backward pass.");
  TORCH_CHECK_TYPE(detail::is_real_float(tensor.scalar_type()), "statistics: '", name, "' has dtype ", tensor.scalar_type(),
                   ". Convert it to float16, bfloat16, float32 or float64.");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "statistics: '", name, "' has layout ", tensor.layout(),
                    ". Pass its values, or tensor.to_dense().");
}

TensorStatistics record_of(std::string name, int64_t numel, const kernels::TensorStatistics& found) {
  TensorStatistics record;
  record.name = std::move(name);
  record.numel = numel;
  record.abs_max = found.abs_max;
  const int64_t finite = numel - found.inf - found.nan;
  record.mean = finite > 0 ? found.sum / static_cast<double>(finite) : 0;
  record.norm = std::sqrt(found.sum_of_squares);
  record.zeros = found.zeros, record.inf = found.inf, record.nan = found.nan;
  for (const auto& [exponent, parts] : found.exponents) {
    record.exponents[exponent] = parts[0] + parts[1] + parts[2] + parts[3];
    record.edges[exponent] = {parts[0], parts[2], parts[3]};
  }
  return record;
}

// The exponents of a type's smallest normal and smallest subnormal value.
struct Range {
  int normal, subnormal;
};

Range range_of(c10::ScalarType dtype) {
  TORCH_CHECK_VALUE(detail::is_low_precision(dtype), "underflow: dtype is ", dtype, ". Use float16 or bfloat16.");
  return dtype == at::kHalf ? Range{-14, -24} : Range{-126, -133};
}

// The parameters, each once; `pick` answers what is asked of one, undefined for none.
template <class Pick>
NamedTensors tensors_of(const torch::nn::Module& module, const Pick& pick) {
  NamedTensors tensors;
  detail::FirstTimes is_new;
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    if (!tensor.defined() || !is_new(tensor)) continue;
    if (at::Tensor picked = pick(tensor); picked.defined()) tensors.emplace_back(parameter.key(), std::move(picked));
  }
  return tensors;
}

}  // namespace

Underflow TensorStatistics::underflow(double scale, c10::ScalarType dtype) const {
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale > 0, "underflow: scale is ", scale, ". It must be finite and above 0.");
  const Range range = range_of(dtype);
  const int shift = std::ilogb(scale);
  Underflow underflow;
  int64_t values = 0;
  for (const auto& [exponent, count] : exponents) {
    const Edges& edge = edges.at(exponent);
    const int scaled = exponent + shift;
    values += count;
    // Half of the smallest subnormal value is a tie, which goes to 0; what is larger goes up.
    const int64_t zero = scaled < range.subnormal - 1 ? count : scaled == range.subnormal - 1 ? edge.at_power : 0;
    // Just below the smallest normal value, what rounds to it is not lost.
    const int64_t rounds_up = edge.near_next_float16 + (dtype == at::kBFloat16 ? edge.near_next_bfloat16 : 0);
    const int64_t small = scaled < range.normal - 1 ? count : scaled == range.normal - 1 ? count - rounds_up : 0;
    underflow.zero += zero;
    underflow.subnormal += small - zero;
  }
  const auto share = [values](int64_t count) {
    return values > 0 ? static_cast<double>(count) / static_cast<double>(values) : 0;
  };
  underflow.zero_share = share(underflow.zero);
  underflow.subnormal_share = share(underflow.subnormal);
  return underflow;
}

std::vector<TensorStatistics> statistics(const NamedTensors& tensors) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    check_tensor(name, tensor);
    values.push_back(tensor);
  }
  const auto found = kernels::tensor_statistics(values);
  std::vector<TensorStatistics> records;
  for (size_t i = 0; i < tensors.size(); ++i) {
    records.push_back(record_of(tensors[i].first, tensors[i].second.numel(), found[i]));
  }
  return records;
}

std::vector<TensorStatistics> statistics(const std::vector<at::Tensor>& tensors) {
  const auto names = detail::newest_parameter_names();
  NamedTensors named;
  for (const at::Tensor& tensor : tensors) {
    const std::string* const name = names && tensor.defined() ? names->find(tensor) : nullptr;
    named.emplace_back(name ? *name : "tensor " + std::to_string(named.size()), tensor);
  }
  return statistics(named);
}

std::vector<TensorStatistics> statistics(const torch::nn::Module& module) {
  return statistics(tensors_of(module, [](const at::Tensor& parameter) { return parameter; }));
}

std::vector<TensorStatistics> grad_statistics(const torch::nn::Module& module) {
  return statistics(tensors_of(module, [](const at::Tensor& parameter) { return parameter.grad(); }));
}

}  // namespace apex::amp
