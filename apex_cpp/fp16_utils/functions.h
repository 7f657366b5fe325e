#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace apex::fp16_utils {

/// The value of a tensor of one element, any dtype; waits for its device. Apex: `fp16_utils.to_python_float` (FP16U-09).
double to_python_float(const at::Tensor& tensor);

/// `torch::nn::utils::clip_grad_norm_`: scales the gradients in place so that their total norm is at most `max_norm`, and
/// returns the norm from before. Apex: `fp16_utils.clip_grad_norm` (FP16U-09).
double clip_grad_norm(const std::vector<at::Tensor>& params, double max_norm, double norm_type = 2.0);

}  // namespace apex::fp16_utils
