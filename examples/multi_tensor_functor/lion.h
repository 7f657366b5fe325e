#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// One step of the Lion optimizer (Chen et al., 2023): params move by lr in the direction of the sign of a running mean. Lists:
// grads, params (float16, bfloat16 or float32, the same for both), exp_avgs (float32). Changes nothing if `noop_flag` is not 0.
void multi_tensor_lion_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float lr,
                            float beta1, float beta2, float weight_decay);
