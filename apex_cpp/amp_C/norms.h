#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

#include <optional>
#include <tuple>

// All of them answer {norm of all elements, shape [1]; norm of each tensor, shape [number of tensors], or [0] unless
// `per_tensor_python` is true}, float32 on the tensors' device. The flag is set to 1 if the result is not finite: also when a
// sum of squares overflows although all elements are finite.

/// L2 norms. Lists: in. Flag: set, not read. Apex: multi_tensor_l2norm.
std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_cuda(int chunk_size, at::Tensor noop_flag,
                                                            std::vector<std::vector<at::Tensor>> tensor_lists,
                                                            std::optional<bool> per_tensor_python);

/// The same. In Apex a flag set before or by the call leaves the results uninitialised; here they are the norms.
/// Apex: multi_tensor_l2norm_mp.
std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_mp_cuda(int chunk_size, at::Tensor noop_flag,
                                                               std::vector<std::vector<at::Tensor>> tensor_lists,
                                                               std::optional<bool> per_tensor_python);

/// out = in * `scale`, and the L2 norms of `in`, without the scale. Lists: in, out; the same tensors in both work in place.
/// Flag: set, not read; outputs are always written. Apex: multi_tensor_l2norm_scale.
std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_scale_cuda(int chunk_size, at::Tensor noop_flag,
                                                                  std::vector<std::vector<at::Tensor>> tensor_lists,
                                                                  float scale, std::optional<bool> per_tensor_python);

/// L2 norms of in * `inv_scale`, a float32 tensor of one element. `in` is not changed. Lists: in. Flag: set, not read.
/// Apex: multi_tensor_unscale_l2norm.
std::tuple<at::Tensor, at::Tensor> multi_tensor_unscale_l2norm_cuda(int chunk_size, at::Tensor noop_flag,
                                                                    std::vector<std::vector<at::Tensor>> tensor_lists,
                                                                    at::Tensor inv_scale,
                                                                    std::optional<bool> per_tensor_python);
