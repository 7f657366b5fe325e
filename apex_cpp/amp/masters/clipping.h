#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace apex::amp::detail {

/// What gradients of L2 norm `norm` are multiplied by so that it is at most `max_norm`: `torch::nn::utils::clip_grad_norm_`'s
/// coefficient, in float32 as there, at most 1, and 1 for a norm that is not finite.
double clip_coefficient(double norm, double max_norm);

/// Scales the gradients in place so that their total L2 norm is at most `max_norm`, and returns the norm from before, one
/// synchronisation. With the bits of `torch::nn::utils::clip_grad_norm_` where all gradients are float32 and the norm is
/// finite.
double clip_in_place(const std::vector<at::Tensor>& grads, double max_norm);

}  // namespace apex::amp::detail
