#include <apex_cpp/optimizers/stepped_param.h>

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <functional>
#include <sstream>

namespace apex::optimizers::detail {

using amp::detail::in_layout_of;

const at::Tensor& state_like(const at::Tensor& param, at::Tensor& kept, at::ScalarType dtype) {
  return kept = kept.defined() ? in_layout_of(kept, param) : at::zeros_like(param, dtype);
}

const at::Tensor& master_like(const at::Tensor& param, at::Tensor& master) {
  if (!master.defined()) master = param.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  return master = in_layout_of(master, param);
}

at::Tensor loaded_like(const at::Tensor& param, const at::Tensor& loaded, at::ScalarType dtype, const std::string& name,
                       const std::string& key) {
  TORCH_CHECK(loaded.sizes() == param.sizes(), name, " has a saved '", key, "' of shape ", loaded.sizes(),
              ". Load it into an optimizer over the same parameters in the same order.");
  return in_layout_of(loaded.to(param.device(), dtype), param);
}

using amp::detail::is_amp_float;

std::string name_of(size_t group, size_t position, const at::Tensor& param) {
  std::ostringstream name;
  name << "Parameter " << position << " of group " << group << ", of shape " << param.sizes() << ",";
  return name.str();
}

void SteppedParam::check() const {
  TORCH_CHECK(grad.layout() == at::kStrided, name(),
              " has a sparse gradient. The fused optimizers take dense ones: make the embedding dense (sparse=false), or "
              "give its weight to torch::optim::SGD or Adagrad.");
  TORCH_CHECK(is_amp_float(param.scalar_type()), name(), " has dtype ", param.scalar_type(),
              ". The fused optimizers take float16, bfloat16 and float32: convert it, or give it to an optimizer of "
              "torch::optim.");
  TORCH_CHECK(is_amp_float(grad.scalar_type()), name(), " has a gradient of dtype ", grad.scalar_type(),
              ". The fused optimizers take float16, bfloat16 and float32: convert it to the parameter's.");
  TORCH_CHECK(amp::detail::fits(grad, param), name(), " is on ", param.device(), ", and has a gradient of shape ", grad.sizes(),
              " on ", grad.device(), ". Drop the gradient with zero_grad(true), and run backward again.");
  for (const at::Tensor* written : {&param, &copy}) {
    TORCH_CHECK(!written->defined() || written->is_non_overlapping_and_dense(), name(), " has strides ", written->strides(),
                ", which leave gaps or repeat elements. Make it contiguous: param.set_data(param.detach().contiguous()).");
  }
}

bool OverlapCheck::Span::operator==(const Span& other) const {
  return begin == other.begin && end == other.end && device == other.device && index == other.index;
}

// Meta tensors have elements but no memory.
void OverlapCheck::add_span(std::vector<Span>& spans, const at::Tensor& tensor, size_t index) {
  if (!tensor.defined() || tensor.numel() == 0 || tensor.is_meta()) return;
  const char* begin = static_cast<const char*>(tensor.const_data_ptr());
  spans.push_back({begin, begin + tensor.nbytes(), tensor.device(), index});
}

bool OverlapCheck::starts_before(const Span& a, const Span& b) {
  if (a.device != b.device) return std::pair(a.device.type(), a.device.index()) < std::pair(b.device.type(), b.device.index());
  return std::less<>()(a.begin, b.begin);
}

void OverlapCheck::check_spans(const std::vector<SteppedParam>& params, std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), starts_before);
  for (size_t i = 1; i < spans.size(); ++i) {
    const Span &before = spans[i - 1], &after = spans[i];
    if (before.device != after.device || std::less_equal<>()(before.end, after.begin)) continue;
    const auto [first, second] = std::minmax(before.index, after.index);
    TORCH_CHECK(false, params[second].name(), " shares memory with parameter ", params[first].position, " of group ",
                params[first].group,
                ", and the step would update both. To tie weights, register one parameter in both modules instead of set_data; "
                "otherwise give it memory of its own: param.set_data(param.detach().clone()).");
  }
}

void OverlapCheck::check(const std::vector<SteppedParam>& params) {
  std::vector<Span> spans;
  spans.reserve(2 * params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    for (const at::Tensor* written : {&params[i].param, &params[i].copy}) add_span(spans, *written, i);
  }
  if (spans == last_) return;
  check_spans(params, spans);
  last_ = std::move(spans);
}

}  // namespace apex::optimizers::detail
