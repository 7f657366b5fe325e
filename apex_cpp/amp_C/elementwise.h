#pragma once

#include <apex_cpp/multi_tensor_apply/tensor_lists.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

/// out = in * `scale`, in float32. Lists: in, out; with the same tensors in both it works in place. A product too large for the
/// dtype of `out` becomes Inf, which is not reported.
/// Flag: set to 1 if an element of `in` is not finite. Outputs are always written.
/// Apex: multi_tensor_scale.
void multi_tensor_scale_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                             float scale);

/// out = `a` * x + `b` * y, in float32. Lists: x, y, out; out may be x or y.
/// `arg_to_check`: the inputs to check for non-finite values: 0 is x, 1 is y, -1 both. ValueError for other values, with which
/// Apex checks none.
/// Flag: set to 1 if a checked input has one. Outputs are always written.
/// Apex: multi_tensor_axpby.
void multi_tensor_axpby_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists, float a,
                             float b, int arg_to_check);

/// Updates a dynamic loss scale after a step, and returns `current_scale`. Tensors of one element on one device:
/// `current_scale` float32, `growth_tracker` and `hysteresis_tracker` int32, `found_inf` float32, above 0 after an overflow. An
/// overflow decrements `hysteresis_tracker`. If the result is 0 or less, the scale is multiplied by `backoff_factor`; there is
/// no lower bound. After `growth_interval` steps without overflow the scale is multiplied by `growth_factor`, unless the
/// product overflows float32. A step without overflow resets `hysteresis_tracker` to `hysteresis`. The host does not wait for
/// the device. Errors: ValueError for a `growth_interval` beyond 32 bits. Apex: update_scale_hysteresis.
at::Tensor update_scale_hysteresis_cuda(at::Tensor current_scale, at::Tensor growth_tracker, at::Tensor hysteresis_tracker,
                                        at::Tensor found_inf, const double growth_factor, const double backoff_factor,
                                        const int64_t growth_interval, const int hysteresis);

// All norm functions return {norm of all elements, shape [1]; norm of each tensor, shape [number of tensors], or [0] unless
// `per_tensor_python` is true}, float32 on the tensors' device. They set the flag to 1 if the result is not finite, which
// includes a sum of squares that overflows although all elements are finite.

/// L2 norms. Lists: in. Flag: set, not read. Apex: multi_tensor_l2norm.
std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_cuda(int chunk_size, at::Tensor noop_flag,
                                                            std::vector<std::vector<at::Tensor>> tensor_lists,
                                                            std::optional<bool> per_tensor_python);

/// Same as multi_tensor_l2norm_cuda. Apex leaves the results uninitialised if the flag is set before or by the call; here they
/// are the norms. Apex: multi_tensor_l2norm_mp.
std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_mp_cuda(int chunk_size, at::Tensor noop_flag,
                                                               std::vector<std::vector<at::Tensor>> tensor_lists,
                                                               std::optional<bool> per_tensor_python);

/// out = in * `scale`; returns the L2 norms of `in`, without the scale. Lists: in, out; with the same tensors in both it works
/// in place. Flag: set, not read; outputs are always written. Apex: multi_tensor_l2norm_scale.
std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_scale_cuda(int chunk_size, at::Tensor noop_flag,
                                                                  std::vector<std::vector<at::Tensor>> tensor_lists,
                                                                  float scale, std::optional<bool> per_tensor_python);

/// L2 norms of in * `inv_scale`. `inv_scale`: float32, one element. `in` is not changed. Lists: in. Flag: set, not read.
/// Apex: multi_tensor_unscale_l2norm.
std::tuple<at::Tensor, at::Tensor> multi_tensor_unscale_l2norm_cuda(int chunk_size, at::Tensor noop_flag,
                                                                    std::vector<std::vector<at::Tensor>> tensor_lists,
                                                                    at::Tensor inv_scale,
                                                                    std::optional<bool> per_tensor_python);
