#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// One step of the Lion optimizer (Chen et al., 2023): params move by lr in the direction of a running mean's sign. Lists:
// grads, params (float16, bfloat16 or float32, both the same), exp_avgs (float32). If `noop_flag` is not 0, nothing is changed.
void multi_tensor_lion_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float lr,
                            float beta1, float beta2, float weight_decay);
