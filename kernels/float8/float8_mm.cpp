#include "kernels/float8/float8.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#ifdef APEX_CPP_HAS_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace apex::kernels {
namespace {

// The 8-bit floats that were decoded: scales are powers of two, so nothing is rounded.
at::Tensor encoded(const Float8Matrix& matrix) {
  const auto type = matrix.format == Float8::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
  return matrix.rounded.values.to(at::kFloat).mul_(matrix.rounded.scales).to(type);
}

at::Tensor inverse(const Float8Matrix& matrix) { return matrix.rounded.scales.reciprocal().reshape({}); }

}  // namespace

bool has_float8_products(c10::Device device) {
#ifdef APEX_CPP_HAS_CUDA
  if (!device.is_cuda()) return false;
  const auto* gpu = at::cuda::getDeviceProperties(device.index());
  return gpu->major > 8 || (gpu->major == 8 && gpu->minor >= 9);
#else
  return device.is_cuda() && false;
#endif
}

// The operator takes rows of a and columns of b. A single row may have any stride and be contiguous, but cuBLAS wants that of a
// longer matrix.
at::Tensor float8_mm(const Float8Matrix& a, const Float8Matrix& b, const std::optional<at::Tensor>& bias) {
  TORCH_INTERNAL_ASSERT(a.rounded.values.dim() == 2 && a.rounded.scales.numel() == 1 && b.rounded.scales.numel() == 1);
  const auto dense_bias = bias ? std::make_optional(bias->contiguous()) : std::nullopt;
  const at::Tensor rows = encoded(a).contiguous();
  return at::_scaled_mm(rows.as_strided(rows.sizes(), {rows.size(1), 1}), encoded(b).t().contiguous().t(), inverse(a),
                        inverse(b), dense_bias, {}, at::kBFloat16, /*use_fast_accum=*/false);
}

}  // namespace apex::kernels
