// The loops of layers, normalization and cross entropy that the compiler vectorizes, compiled for AVX512.
#include "kernels/layers/cpu/loops.h"
#include "kernels/normalization/cpu/make_norm_rows.h"
#include "kernels/xentropy/cpu/make_xentropy_rows.h"

namespace apex::kernels {

constexpr layers::LayerKernels layers::kAvx512Layers = layers::make_layers();
constexpr normalization::cpu::RowTables normalization::cpu::kAvx512Rows = normalization::cpu::make_rows();
constexpr xentropy::cpu::RowTable xentropy::cpu::kAvx512Rows = xentropy::cpu::make_rows();

}  // namespace apex::kernels
