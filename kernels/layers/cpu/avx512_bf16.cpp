#include "kernels/layers/cpu/make_layers.h"

namespace apex::kernels::layers {

constexpr LayerKernels kAvx512Bf16Layers = make_layers();

}  // namespace apex::kernels::layers
