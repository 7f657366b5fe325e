#include "kernels/update.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

namespace apex::kernels {

using plan::Access;

namespace {

// Throws c10::ValueError unless control.step is a step's number.
void check_step(const char* op, const MomentControl& control) {
  if (control.step_tensor.defined()) return;
  TORCH_CHECK_VALUE(control.step >= 1, op, ": step is ", control.step, ". Steps are counted from 1.");
}

// Where an update takes place. Lists may be empty, and so may all of their tensors.
c10::Device device_of(const plan::Groups& groups, at::TensorList tensors, const at::Tensor& step_tensor) {
  if (groups->size() != 0) return (*groups)[0].device;
  if (!tensors.empty()) return tensors[0].device();
  return step_tensor.defined() ? step_tensor.device() : c10::Device(c10::kCPU);
}

}  // namespace

void bump_versions(at::TensorList written) {
  constexpr int64_t kAtOnce = 1024;
  at::parallel_for(0, static_cast<int64_t>(written.size()), kAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) written[static_cast<size_t>(i)].unsafeGetTensorImpl()->bump_version();
  });
}

Update::Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepControl& control,
               const at::Tensor& step_tensor)
    : op_(op), lists_(std::move(lists)), copies_(!model_params.empty()) {
  if (copies_) lists_.push_back({"model_params", model_params, Access::write});
  if (control.found_inf.defined()) plan::check_found_inf(op, control.found_inf);
  for (plan::TensorList& list : lists_) list.takes_double = false;
  groups_ = plan::checked_groups(op, lists_);
  device_ = device_of(groups_, lists_.front().tensors, step_tensor);
  check_devices();
  check_value("grad_scale_tensor", control.grad_scale_tensor, at::kFloat);
  check_value("lr_tensor", control.lr_tensor, at::kFloat);
  check_value("step_tensor", step_tensor, at::kInt);
  stopped_ = is_for_host(control.found_inf) && control.found_inf.item<int>() != 0;
}

Update::Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepControl& control)
    : Update(op, std::move(lists), model_params, control, at::Tensor()) {}

Update::Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const MomentControl& control)
    : Update(op, std::move(lists), model_params, control, control.step_tensor) {
  check_step(op, control);
}

void Update::check_value(const char* name, const at::Tensor& tensor, at::ScalarType dtype) const {
  if (!tensor.defined()) return;
  TORCH_CHECK(tensor.scalar_type() == dtype && tensor.numel() == 1, op_, ": ", name, " must be a tensor of one ", dtype,
              ", got ", tensor.scalar_type(), " with sizes ", tensor.sizes(), ".");
  check_device(name, tensor);
}

void Update::check_norms(const char* name, const at::Tensor& norms) const {
  TORCH_CHECK(norms.defined() && norms.scalar_type() == at::kFloat && norms.is_contiguous() &&
                  norms.numel() == static_cast<int64_t>(count()),
              op_, ": ", name, " must be a contiguous Float tensor with ", count(), " elements, one for each tensor.");
  check_device(name, norms);
}

void Update::check_device(const char* name, const at::Tensor& tensor) const {
  TORCH_CHECK(tensor.device() == device(), op_, ": ", name, " is on ", tensor.device(), " and ", lists_.front().name,
              " are on ", device_, ". Move ", name, " to the device of the tensors.");
}

void Update::check_devices() const {
  for (const plan::Group& group : *groups_) {
    if (group.device.is_cpu() || cuda::handles(group.device)) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(!group.device.is_cuda(), op_, ": this library was built without CUDA and has no kernel for ",
                                plan::name_of(lists_.front(), group.rows.front().index), " on ", group.device,
                                ". Configure it with APEX_CPP_CUDA=ON, or move the tensors to the CPU.");
    C10_THROW_ERROR(NotImplementedError,
                    c10::str(op_, " is not implemented for tensors on ", group.device, ". Move them to the CPU."));
  }
}

c10::Device Update::device() const {
  for (const plan::Group& group : *groups_) {
    TORCH_CHECK(group.device == device_, op_, ": ", plan::name_of(lists_.front(), group.rows.front().index), " is on ",
                group.device, " and others are on ", device_, ". Make one call for each device.");
  }
  return device_;
}

bool Update::is_for_host(const at::Tensor& found_inf) const {
  if (!found_inf.defined()) return false;
  if (!cuda::handles(found_inf.device()) || found_inf.device() != device_) return true;
  return groups_->size() != 0 && !cuda::whole_call(groups_, device_).has_value();
}

std::vector<cuda::Call> Update::cuda_calls() const {
  if (groups_->size() == 0 && cuda::handles(device_)) return {{groups_, device_}};
  return cuda::calls_of(groups_);
}

void Update::count_step(const MomentControl& control) const {
  const at::Tensor& step = control.step_tensor;
  if (!stopped_ && step.defined() && !cuda::handles(device_)) step.add_(1);
}

}  // namespace apex::kernels
