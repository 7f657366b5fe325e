#include <apex_cpp/amp_C/detail/arguments.h>

#include "kernels/multi_tensor.h"
#include "kernels/plan/reuse.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>
#include <iterator>

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

}  // namespace

void check_one_element(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype, c10::Device device) {
  check_elements(op, name, tensor, dtype, 1, device);
}

void check_one_per_tensor(const char* op, const char* name, const at::Tensor& tensor, size_t count, c10::Device device) {
  check_elements(op, name, tensor, at::kFloat, static_cast<int64_t>(count), device);
}

bool choice(const char* op, const char* name, int value) {
  TORCH_CHECK_VALUE(value == 0 || value == 1, op, ": ", name, " is ", value, ". Use 0 or 1.");
  return value == 1;
}

void set_means(const char* op, kernels::MomentSettings& settings, double beta1, double beta2, double eps, int bias_correction) {
  settings.beta1 = beta1;
  settings.beta2 = beta2;
  settings.eps = eps;
  settings.bias_correction = choice(op, "bias_correction", bias_correction);
}

// Without bias correction the step is unused, and Apex accepts any value.
void set_moments(const char* op, kernels::MomentSettings& settings, double beta1, double beta2, double eps, int step,
                 int bias_correction) {
  set_means(op, settings, beta1, beta2, eps, bias_correction);
  if (settings.bias_correction) settings.step = step;
}

kernels::StepTensors step_tensors(const char* op, const at::Tensor& noop_flag, const at::Tensor& step, bool bias_correction,
                                  const at::Tensor& lr, const at::Tensor& inv_scale) {
  const c10::Device device = noop_flag.device();
  check_one_element(op, "lr", lr, at::kFloat, device);
  check_one_element(op, "step", step, at::kInt, device);
  check_one_element(op, "inv_scale", inv_scale, at::kFloat, device);
  kernels::StepTensors tensors;
  tensors.found_inf = noop_flag;
  tensors.lr = lr;
  tensors.grad_scale = inv_scale;
  // A copy for the kernel to advance: Apex's callers advance `step` themselves.
  if (!bias_correction) return tensors;
  // A caller that counts from 0 does not advance it in a step that the flag stops.
  TORCH_CHECK_VALUE(!step.is_cpu() || noop_flag.item<int>() != 0 || step.item<int>() >= 1, op, ": step is ", step.item<int>(),
                    ". Steps are counted from 1.");
  tensors.step = step.detach().sub(1);
  return tensors;
}

Float32List::Float32List(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
  if (tensors.front().scalar_type() != at::kDouble) return;
  for (const at::Tensor& tensor : tensors) copies_.push_back(at::empty_like(tensor, tensor.options().dtype(at::kFloat)));
  kernels::multi_tensor_copy(tensors_, copies_);
}

void Float32List::write_back(const at::Tensor& stop) const {
  if (copies_.empty()) return;
  if (!stop.defined()) return kernels::multi_tensor_copy(copies_, tensors_);
  const at::NoGradGuard no_grad;
  const at::Tensor stays = stop.ne(0).reshape({});
  for (size_t i = 0; i < copies_.size(); ++i) tensors_[i].copy_(at::where(stays, tensors_[i], copies_[i]));
}

namespace {

using kernels::plan::Access;

constexpr std::array<const char*, kernels::plan::kMaxLists> kListNames = {
    "tensor_lists[0]", "tensor_lists[1]", "tensor_lists[2]", "tensor_lists[3]", "tensor_lists[4]"};

std::vector<const char*> names_of(c10::ArrayRef<Role> roles) {
  std::vector<const char*> names;
  std::transform(roles.begin(), roles.end(), std::back_inserter(names), [](const Role& role) { return role.name; });
  return names;
}

}  // namespace

void check_roles(const char* op, int64_t chunk_size, const at::Tensor& noop_flag, const TensorLists& tensor_lists,
                 c10::ArrayRef<Role> roles) {
  check_tensor_lists(op, chunk_size, noop_flag, tensor_lists, roles.size(), names_of(roles));
  std::vector<kernels::plan::TensorList> lists;
  for (size_t i = 0; i < roles.size(); ++i) {
    if (roles[i].use == Use::none) continue;
    const Access access = roles[i].use == Use::write ? Access::write : Access::read;
    lists.push_back({kListNames[i], tensor_lists[i], access, roles[i].takes_double, roles[i].name});
  }
  kernels::plan::checked_groups(op, lists);  // cached: kernels over the same lists skip the checks
}

}  // namespace apex::amp_C::detail
