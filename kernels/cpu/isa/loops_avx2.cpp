// The loops of FP8, layers, normalization and cross entropy that the compiler vectorizes, compiled for AVX2, FMA and F16C.
#include "kernels/float8/cpu/loops.h"
#include "kernels/layers/cpu/loops.h"
#include "kernels/normalization/cpu/make_norm_rows.h"
#include "kernels/xentropy/cpu/make_xentropy_rows.h"

namespace apex::kernels {

constexpr float8::Float8Kernels float8::kAvx2Float8 = float8::make_float8();
constexpr layers::LayerKernels layers::kAvx2Layers = layers::make_layers();
constexpr normalization::cpu::RowTables normalization::cpu::kAvx2Rows = normalization::cpu::make_rows();
constexpr xentropy::cpu::RowTable xentropy::cpu::kAvx2Rows = xentropy::cpu::make_rows();

}  // namespace apex::kernels
