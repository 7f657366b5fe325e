#include <apex_cpp/amp/scaling/capture.h>

#include <c10/util/Exception.h>

#include "kernels/capture.h"

namespace apex::amp::detail {

void check_capture(const LossScaler& scaler, const char* caller, c10::Device device) {
  TORCH_CHECK(
      !scaler.looks() || !kernels::is_captured(device), caller,
      " was called while a CUDA graph is captured, and the loss scale is dynamic or skip_nonfinite on: the host "
      "decides after each backward pass what the scale is and whether to step, and a graph would keep what it decides now. "
      "Give amp::initialize a fixed loss_scale without skip_nonfinite, or leave scale_loss and step outside of the graph.");
}

}  // namespace apex::amp::detail
