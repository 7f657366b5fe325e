#pragma once

#include <ATen/core/Tensor.h>

/// Updates a dynamic loss scale after a step, and answers `current_scale`. Tensors of one element on one device:
/// `current_scale` float32, `growth_tracker` and `hysteresis_tracker` int32, `found_inf` float32, above 0 after an overflow. An
/// overflow takes one from `hysteresis_tracker`. If that leaves 0 or less, the scale is multiplied by `backoff_factor`; there
/// is no lower bound. After `growth_interval` steps without one the scale is multiplied by `growth_factor`, unless the product
/// leaves float32. A step without an overflow sets `hysteresis_tracker` to `hysteresis`. The host does not wait for the device.
/// Apex: update_scale_hysteresis.
at::Tensor update_scale_hysteresis_cuda(at::Tensor current_scale, at::Tensor growth_tracker, at::Tensor hysteresis_tracker,
                                        at::Tensor found_inf, const double growth_factor, const double backoff_factor,
                                        const int64_t growth_interval, const int hysteresis);
