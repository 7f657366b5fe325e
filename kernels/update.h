#pragma once

#include "kernels/cuda/multi_tensor_cuda.h"
#include "kernels/optimizers.h"
#include "kernels/plan/reuse.h"
#include "kernels/rules/coefficients.h"
#include "kernels/rules/scale.h"

#include <type_traits>
#include <vector>

// Control structs as plain values, and the rules that they ask for. Tensors in a control are not looked at.
namespace apex::kernels {

rules::SgdSettings settings_of(const SgdControl& control);
rules::AdamSettings settings_of(const AdamControl& control);
rules::AdagradSettings settings_of(const AdagradControl& control);
rules::NovoGradSettings settings_of(const NovoGradControl& control);
rules::LambSettings settings_of(const LambControl& control);
rules::LarcSettings settings_of(const LarcControl& control);

// `half_params`: whether the parameters are stored in float16.
rules::PlainSgd plain_sgd_rule(const SgdControl& control, bool half_params);
rules::MomentumSgd momentum_sgd_rule(const SgdControl& control, bool half_params);
rules::Adam adam_rule(const AdamControl& control);
rules::Adagrad adagrad_rule(const AdagradControl& control);
// `norm`: the tensor's running norm.
rules::NovoGrad novograd_rule(const NovoGradControl& control, float norm);
// `global_grad_norm`: 0 where the control has none. `half_updates`: whether the updates are stored in float16.
rules::LambStage1 lamb_stage_1_rule(const LambControl& control, double global_grad_norm, bool half_updates);
rules::LambStage2 lamb_stage_2_rule(const LambControl& control, float param_norm, float update_norm);
// Norms are those of the parameter and the unscaled gradient.
rules::Larc larc_rule(const LarcControl& control, double param_norm, double grad_norm);
rules::ScaleUpdate scale_update_rule(const ScaleUpdateControl& control);

// Autograd finds out by version counters that a tensor it saved was written to. Drivers that write through pointers do not
// move them.
void bump_versions(at::TensorList written);

// The lists of one optimizer update: checked and grouped when constructed, so that nothing is changed if a check fails.
class Update {
 public:
  // `model_params` is the last list, left out if it is empty.
  Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepControl& control);
  Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const MomentControl& control);

  // Throws c10::Error unless `tensor` is undefined, or has one element of `dtype` and is on the device of the update's tensors.
  void check_value(const char* name, const at::Tensor& tensor, at::ScalarType dtype) const;

  // Throws c10::Error unless `norms` are float32, one for each tensor, on the device of the update's tensors.
  void check_norms(const char* name, const at::Tensor& norms) const;

  // Whether control.found_inf says that nothing may be changed. A flag on the tensors' own CUDA device is not looked at: there
  // it stops the kernels.
  bool stopped() const { return stopped_; }

  bool copies() const { return copies_; }
  size_t count() const { return lists_.front().tensors.size(); }

  // The device of the tensors. Throws c10::Error if there are several.
  c10::Device device() const;

  // cpu(group) for each group and cuda(call) for each CUDA device, unless stopped.
  template <class Cpu, class Cuda>
  void run(const Cpu& cpu, const Cuda& cuda) const {
    if (stopped_) return;
    for (const plan::Group& group : *groups_) {
      if (!cuda::handles(group.device)) cpu(group);
    }
    for (const cuda::Call& call : cuda_calls()) cuda(call);
    for (const plan::TensorList& list : lists_) {
      if (list.access == plan::Access::write) bump_versions(list.tensors);
    }
  }

  // Adds 1 to control.step_tensor, unless the update is stopped or kernels of the device have done so.
  void count_step(const MomentControl& control) const;

 private:
  Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepControl& control,
         const at::Tensor& step_tensor);

  void check_device(const char* name, const at::Tensor& tensor) const;
  void check_devices() const;
  // Whether the flag is to be looked at before anything is run.
  bool is_for_host(const at::Tensor& found_inf) const;
  // Without elements there is one call all the same, where steps are counted on the device.
  std::vector<cuda::Call> cuda_calls() const;

  const char* op_;
  std::vector<plan::TensorList> lists_;
  plan::Groups groups_;
  c10::Device device_ = c10::kCPU;  // of the first tensor, with elements if one has any
  bool copies_;
  bool stopped_;
};

// The control with the values that its tensors, all on the CPU, have now in their place.
template <class Control>
Control read_now(Control control) {
  if (control.grad_scale_tensor.defined()) control.grad_scale *= control.grad_scale_tensor.template item<double>();
  if (control.lr_tensor.defined()) control.lr = control.lr_tensor.template item<double>();
  if constexpr (std::is_base_of_v<MomentControl, Control>) {
    if (control.step_tensor.defined()) control.step = control.step_tensor.template item<int64_t>() + 1;
  }
  return control;
}

}  // namespace apex::kernels
