#include "kernels/aten_fallback.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <vector>

#include "kernels/moved_to.h"
#include "kernels/rules/rule.h"

namespace apex::kernels::aten {
namespace {

// A dense tensor's elements in the order of their memory.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

// Writes values to a tensor of any dtype, float64 to 16 bits by way of float32 as everywhere in kernels/. PyTorch does so on
// x86 and on GPUs; on ARM its own conversion of float64 to float16 rounds once.
void store(const at::Tensor& out, const at::Tensor& values) {
  const bool by_float32 = values.scalar_type() == at::kDouble && c10::elementSize(out.scalar_type()) == 2;
  flat(out).copy_(by_float32 ? values.to(at::kFloat) : values);
}

at::ScalarType math_dtype(const plan::Group& group) { return group.has_double() ? at::kDouble : at::kFloat; }

at::Tensor any(const plan::Group& group, const std::vector<at::Tensor>& flags) {
  if (flags.empty()) return at::zeros({}, at::TensorOptions().dtype(at::kBool).device(group.device));
  return at::stack(flags).any();
}

at::Tensor sum_by_chunks(const at::Tensor& values) {
  const int64_t whole = values.numel() / plan::kChunkSize * plan::kChunkSize;
  const at::Tensor sums = values.narrow(0, 0, whole).view({-1, plan::kChunkSize}).sum(1);
  const at::Tensor rest = values.narrow(0, whole, values.numel() - whole).sum();
  return at::cat({sums, rest.reshape({1})}).sum(at::kDouble);
}

// result_of(values) for each row, as float64 at the row's index; 0 elsewhere.
template <class ResultOf>
at::Tensor by_index(const plan::Group& group, at::TensorList in, const ResultOf& result_of) {
  const auto zero = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(group.device));
  std::vector<at::Tensor> results(in.size(), zero);
  for (const plan::TensorRow& row : group.rows) results[row.index] = result_of(flat(in[row.index]).to(math_dtype(group)));
  return at::stack(results);
}

// `factor`: a number, or a tensor without dimensions.
template <class Factor>
at::Tensor scale_by(const plan::Group& group, at::TensorList in, at::TensorList out, const Factor& factor) {
  std::vector<at::Tensor> flags;
  for (const plan::TensorRow& row : group.rows) {
    const at::Tensor values = flat(in[row.index]).to(math_dtype(group));
    flags.push_back(has_nonfinite(values));
    store(out[row.index], values.mul(factor));
  }
  return any(group, flags);
}

}  // namespace

// The same test as in rules/rule.h. at::isfinite takes more operators.
at::Tensor has_nonfinite(const at::Tensor& values) { return values.sub(values).ne(0).any(); }

at::Tensor ordered_sum(const at::Tensor& values) {
  const int64_t rounds = (values.numel() + rules::kLanes - 1) / rules::kLanes;
  const at::Tensor padded = at::zeros({rounds, rules::kLanes}, values.options());
  padded.flatten().narrow(0, 0, values.numel()).copy_(values);
  at::Tensor lanes = at::zeros({rules::kLanes}, values.options());
  for (int64_t i = 0; i < rounds; ++i) lanes.add_(padded[i]);
  for (int64_t width = rules::kLanes / 2; width > 0; width /= 2) {
    lanes = lanes.narrow(0, 0, width).add(lanes.narrow(0, width, width));
  }
  return lanes;
}

at::Tensor scale(const plan::Group& group, at::TensorList in, at::TensorList out, double factor) {
  return scale_by(group, in, out, factor);
}

at::Tensor unscale(const plan::Group& group, at::TensorList in, at::TensorList out, const at::Tensor& inv_scale) {
  return scale_by(group, in, out, moved_to(group.device, inv_scale.reshape({}), math_dtype(group)));
}

at::Tensor has_nonfinite(const plan::Group& group, at::TensorList in) {
  std::vector<at::Tensor> flags;
  for (const plan::TensorRow& row : group.rows) flags.push_back(has_nonfinite(flat(in[row.index])));
  return any(group, flags);
}

at::Tensor axpby(const plan::Group& group, at::TensorList x, at::TensorList y, at::TensorList out, double a, double b,
                 CheckArg check) {
  std::vector<at::Tensor> flags;
  for (const plan::TensorRow& row : group.rows) {
    const at::Tensor x_values = flat(x[row.index]).to(math_dtype(group));
    const at::Tensor y_values = flat(y[row.index]).to(math_dtype(group));
    if (check != CheckArg::y) flags.push_back(has_nonfinite(x_values));
    if (check != CheckArg::x) flags.push_back(has_nonfinite(y_values));
    store(out[row.index], x_values.mul(a).add(y_values.mul(b)));
  }
  return any(group, flags);
}

void copy(const plan::Group& group, at::TensorList from, at::TensorList to) {
  for (const plan::TensorRow& row : group.rows) store(to[row.index], flat(from[row.index]));
}

at::Tensor sums_of_squares(const plan::Group& group, at::TensorList in, const at::Tensor& factor) {
  const at::Tensor on_device = factor.defined() ? factor.reshape({}).to(group.device, math_dtype(group)) : factor;
  return by_index(group, in, [&](const at::Tensor& values) {
    return sum_by_chunks((factor.defined() ? values.mul(on_device) : values).square());
  });
}

at::Tensor max_magnitudes(const plan::Group& group, at::TensorList in) {
  return by_index(group, in, [](const at::Tensor& values) { return values.abs().max().to(at::kDouble); });
}

// at::sqrt may be off by a bit, but the result is exact: the root of a float32 value is never close to the middle between two
// float32 values, so that rounding its float64 root gives the float32 root. Sums beyond float32, which would round to Inf, stay
// float64.
at::Tensor roots_of(const at::Tensor& sums) {
  const at::Tensor rounded = sums.to(at::kFloat).to(at::kDouble);
  return at::minimum(rounded, sums.clamp_min(std::numeric_limits<float>::max())).sqrt().to(at::kFloat);
}

}  // namespace apex::kernels::aten
