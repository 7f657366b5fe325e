// The loops of FP8, layers, normalization and cross entropy that the compiler vectorizes, compiled for AVX512.
#include "kernels/float8/cpu/loops.h"
#include "kernels/layers/cpu/loops.h"
#include "kernels/normalization/cpu/make_norm_rows.h"
#include "kernels/xentropy/cpu/make_xentropy_rows.h"

namespace apex::kernels {

constexpr float8::Float8Kernels float8::kAvx512Float8 = float8::make_float8();
constexpr layers::LayerKernels layers::kAvx512Layers = layers::make_layers();
constexpr normalization::cpu::RowTables normalization::cpu::kAvx512Rows = normalization::cpu::make_rows();
constexpr xentropy::cpu::RowTable xentropy::cpu::kAvx512Rows = xentropy::cpu::make_rows();

}  // namespace apex::kernels
