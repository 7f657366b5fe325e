// The loops of layers that the compiler vectorizes, compiled for AVX512 with its BF16 conversions.
#include "kernels/layers/cpu/loops.h"

namespace apex::kernels {

constexpr layers::LayerKernels layers::kAvx512Bf16Layers = layers::make_layers();

}  // namespace apex::kernels
