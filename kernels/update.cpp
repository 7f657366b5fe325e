#include "kernels/update.h"

namespace apex::kernels {

using plan::Access;

void bump_versions(at::TensorList written) {
  for (const at::Tensor& tensor : written) tensor.unsafeGetTensorImpl()->bump_version();
}

Update::Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepControl& control)
    : lists_(std::move(lists)), copies_(!model_params.empty()) {
  if (copies_) lists_.push_back({"model_params", model_params, Access::write});
  if (control.found_inf.defined()) plan::check_found_inf(op, control.found_inf);
  groups_ = plan::checked_groups(op, lists_);
  check_dtypes(op);
  check_devices(op);
  stopped_ = control.found_inf.defined() && control.found_inf.item<int>() != 0;
}

void Update::check_dtypes(const char* op) const {
  for (const plan::Group& group : *groups_) {
    for (size_t i = 0; i < lists_.size(); ++i) {
      TORCH_CHECK(group.dtypes[i] != at::kDouble, op, ": ", lists_[i].name, "[", group.rows.front().index,
                  "] has dtype Double. Supported are Half, BFloat16 and Float.");
    }
  }
}

void Update::check_devices(const char* op) const {
  for (const plan::Group& group : *groups_) {
    TORCH_CHECK_NOT_IMPLEMENTED(group.device.is_cpu(), op, " is not implemented for tensors on ", group.device,
                                ". Move them to the CPU.");
  }
}

void check_step(const char* op, const MomentControl& control) {
  TORCH_CHECK_VALUE(control.step >= 1, op, ": step is ", control.step, ". Steps are counted from 1.");
}

}  // namespace apex::kernels
