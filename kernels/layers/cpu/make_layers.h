#pragma once

#include "kernels/layers/cpu/batch_norm_loops.h"
#include "kernels/layers/cpu/elementwise_loops.h"
#include "kernels/layers/cpu/layer_kernels.h"

namespace apex::kernels::layers {
namespace {

constexpr LayerKernels make_layers() { return {relu, relu_backward, add, deviations, normalize, grad_sums, grad_input}; }

}  // namespace
}  // namespace apex::kernels::layers
