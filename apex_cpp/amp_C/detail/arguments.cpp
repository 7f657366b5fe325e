#include <apex_cpp/amp_C/detail/arguments.h>

namespace apex::amp_C::detail {
namespace {

void check_elements(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype, int64_t count,
                    c10::Device device) {
  TORCH_CHECK(tensor.defined(), op, ": ", name, " is undefined. It must be a ", dtype,
              " tensor; its number of elements: ", count, ".");
  TORCH_CHECK(tensor.scalar_type() == dtype && tensor.numel() == count && tensor.is_contiguous(), op, ": ", name, " is a ",
              tensor.scalar_type(), " tensor with sizes ", tensor.sizes(), ". It must be a contiguous ", dtype,
              " tensor; its number of elements: ", count, ".");
  TORCH_CHECK(tensor.device() == device, op, ": ", name, " is on ", tensor.device(), " and the tensors on ", device,
              ". They must be on the same device.");
}

void set_means(const char* op, kernels::MomentControl& control, double beta1, double beta2, double eps, int bias_correction) {
  control.beta1 = beta1;
  control.beta2 = beta2;
  control.eps = eps;
  control.bias_correction = choice(op, "bias_correction", bias_correction);
}

}  // namespace

void check_one_element(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype, c10::Device device) {
  check_elements(op, name, tensor, dtype, 1, device);
}

void check_one_per_tensor(const char* op, const char* name, const at::Tensor& tensor, size_t count, c10::Device device) {
  check_elements(op, name, tensor, at::kFloat, static_cast<int64_t>(count), device);
}

bool choice(const char* op, const char* name, int value) {
  TORCH_CHECK_VALUE(value == 0 || value == 1, op, ": ", name, " is ", value, ". It is 0 or 1.");
  return value == 1;
}

// Without bias correction nobody looks at the step: Apex takes any.
void set_moments(const char* op, kernels::MomentControl& control, double beta1, double beta2, double eps, int step,
                 int bias_correction) {
  set_means(op, control, beta1, beta2, eps, bias_correction);
  if (control.bias_correction) control.step = step;
}

void set_device_moments(const char* op, kernels::MomentControl& control, c10::Device device, double beta1, double beta2,
                        double eps, const at::Tensor& step, int bias_correction, const at::Tensor& lr,
                        const at::Tensor& inv_scale) {
  set_means(op, control, beta1, beta2, eps, bias_correction);
  check_one_element(op, "lr", lr, at::kFloat, device);
  check_one_element(op, "step", step, at::kInt, device);
  check_one_element(op, "inv_scale", inv_scale, at::kFloat, device);
  control.lr_tensor = lr;
  control.grad_scale_tensor = inv_scale;
  // A counter that the kernel may advance: Apex's callers advance theirs themselves.
  if (control.bias_correction) control.step_tensor = step.detach().sub(1);
}

}  // namespace apex::amp_C::detail
