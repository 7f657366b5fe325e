#pragma once

#include <apex_cpp/amp/tensors/convert_network.h>

namespace apex::fp16_utils {

/// Casts what `module` itself owns (not its children) to `dtype`, in place: floating parameters, their floating gradients and
/// floating buffers. Every TensorImpl stays the same object, so optimizers that hold the parameters remain valid.
/// Works on any device without synchronisation. Apex: `fp16_utils.convert_module`.
using amp::detail::convert_module;

/// Casts a whole network to `dtype`, sparing batch norms with affine parameters, whose statistics and weights stay as they are.
/// Batch norms without affine parameters, and every other normalisation, are cast. RNN weights are flattened again.
/// Apex: `fp16_utils.convert_network`.
using amp::detail::convert_network;

/// Casts every floating parameter, gradient and buffer of a network to `dtype`, batch norms included.
using amp::detail::convert_all;

/// Whether `module` is a batch norm with affine parameters, the kind that `convert_network` spares.
using amp::detail::is_affine_batch_norm;

}  // namespace apex::fp16_utils
