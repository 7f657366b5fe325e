#pragma once

#include "kernels/optimizers.h"

// Where a kernel reads the tensors of a control: on the device of what it updates. For the source files of the optimizers.
namespace apex::optimizers::detail {

/// The tensor on `device`, or an undefined one. The host waits only for what it is to read itself, on the CPU.
inline at::Tensor moved_to(c10::Device device, const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(device, /*non_blocking=*/!device.is_cpu()) : tensor;
}

/// Moves what every update reads.
inline void place_control(c10::Device device, kernels::StepControl& control) {
  for (at::Tensor* tensor : {&control.found_inf, &control.grad_scale_tensor, &control.lr_tensor}) {
    *tensor = moved_to(device, *tensor);
  }
}

/// Whether a kernel on `device` can advance this count of steps itself. An undefined one is the host's.
inline bool can_count(c10::Device device, const at::Tensor& step_tensor) {
  return !step_tensor.defined() || step_tensor.device() == device;
}

/// The same, and the count: itself for the kernel that is to advance it, else a copy.
inline void place_control(c10::Device device, bool counts, kernels::MomentControl& control) {
  place_control(device, control);
  if (counts || !control.step_tensor.defined()) return;
  control.step_tensor = control.step_tensor.to(device, /*non_blocking=*/!device.is_cpu(), /*copy=*/true);
}

}  // namespace apex::optimizers::detail
