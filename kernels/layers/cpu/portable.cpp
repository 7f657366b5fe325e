#include "kernels/layers/cpu/make_layers.h"

namespace apex::kernels::layers {

constexpr LayerKernels kPortableLayers = make_layers();

}  // namespace apex::kernels::layers
