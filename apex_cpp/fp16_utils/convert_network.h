#pragma once

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

namespace apex::fp16_utils {

/// Casts what `module` itself owns (not its children) to `dtype`, in place: floating parameters, their floating gradients and
/// floating buffers. Every TensorImpl stays the same object, so optimizers that hold the parameters remain valid.
/// Works on any device without synchronisation. Apex: `fp16_utils.convert_module`.
void convert_module(torch::nn::Module& module, c10::ScalarType dtype);

/// Casts a whole network to `dtype`, sparing batch norms with affine parameters, whose statistics and weights stay as they are.
/// Batch norms without affine parameters, and every other normalisation, are cast. RNN weights are flattened again.
/// Apex: `fp16_utils.convert_network`.
void convert_network(torch::nn::Module& network, c10::ScalarType dtype);

/// Casts every floating parameter, gradient and buffer of a network to `dtype`, batch norms included.
void convert_all(torch::nn::Module& network, c10::ScalarType dtype);

/// Whether `module` is a batch norm with affine parameters, the kind that `convert_network` spares.
bool is_affine_batch_norm(const torch::nn::Module& module);

}  // namespace apex::fp16_utils
