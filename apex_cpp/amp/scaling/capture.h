#pragma once

#include <apex_cpp/amp/scaling/loss_scaler.h>
#include <c10/core/Device.h>

namespace apex::amp::detail {

/// Errors: RuntimeError that names the remedy where work on `device` is captured in a CUDA graph and the host is to decide by
/// the gradients whether to step, which a graph cannot follow. `caller` is who was called.
void check_capture(const LossScaler& scaler, const char* caller, c10::Device device);

}  // namespace apex::amp::detail
