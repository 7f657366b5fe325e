#include "kernels/update.h"

#include "kernels/cuda/multi_tensor_cuda.h"
#include "kernels/plan/plan.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace apex::kernels {
namespace {

template <class Settings>
Settings with_step(const StepControl& control) {
  Settings settings{};
  settings.grad_scale = control.grad_scale;
  settings.lr = control.lr;
  settings.weight_decay = control.weight_decay;
  return settings;
}

template <class Settings>
Settings with_moments(const MomentControl& control) {
  Settings settings = with_step<Settings>(control);
  settings.beta1 = control.beta1;
  settings.beta2 = control.beta2;
  settings.eps = control.eps;
  settings.step = control.step;
  settings.bias_correction = control.bias_correction;
  return settings;
}

}  // namespace

rules::SgdSettings settings_of(const SgdControl& control) {
  auto settings = with_step<rules::SgdSettings>(control);
  settings.momentum = control.momentum;
  settings.dampening = control.dampening;
  settings.nesterov = control.nesterov;
  settings.first_run = control.first_run;
  settings.weight_decay_after_momentum = control.weight_decay_after_momentum;
  return settings;
}

rules::AdamSettings settings_of(const AdamControl& control) {
  auto settings = with_moments<rules::AdamSettings>(control);
  settings.adam_w_mode = control.adam_w_mode;
  return settings;
}

rules::AdagradSettings settings_of(const AdagradControl& control) {
  auto settings = with_step<rules::AdagradSettings>(control);
  settings.eps = control.eps;
  settings.adagrad_w_mode = control.adagrad_w_mode;
  return settings;
}

rules::NovoGradSettings settings_of(const NovoGradControl& control) {
  auto settings = with_moments<rules::NovoGradSettings>(control);
  settings.grad_averaging = control.grad_averaging;
  settings.reg_inside_moment = control.reg_inside_moment;
  settings.l2 = control.norm_type == NormType::l2;
  settings.first_run = control.first_run;
  return settings;
}

rules::LambSettings settings_of(const LambControl& control) {
  auto settings = with_moments<rules::LambSettings>(control);
  settings.adam_w_mode = control.adam_w_mode;
  settings.grad_averaging = control.grad_averaging;
  settings.use_nvlamb = control.use_nvlamb;
  settings.max_grad_norm = control.max_grad_norm;
  return settings;
}

rules::LarcSettings settings_of(const LarcControl& control) {
  auto settings = with_step<rules::LarcSettings>(control);
  settings.trust_coefficient = control.trust_coefficient;
  settings.eps = control.eps;
  settings.clip = control.clip;
  return settings;
}

rules::PlainSgd plain_sgd_rule(const SgdControl& control, bool half_params) {
  return rules::plain_sgd(settings_of(control), half_params);
}

rules::MomentumSgd momentum_sgd_rule(const SgdControl& control, bool half_params) {
  return rules::momentum_sgd(settings_of(control), half_params);
}

rules::Adam adam_rule(const AdamControl& control) { return rules::adam(settings_of(control)); }
rules::Adagrad adagrad_rule(const AdagradControl& control) { return rules::adagrad(settings_of(control)); }

rules::NovoGrad novograd_rule(const NovoGradControl& control, float norm) {
  return rules::novograd(settings_of(control), norm);
}

rules::LambStage1 lamb_stage_1_rule(const LambControl& control, double global_grad_norm, bool half_updates) {
  return rules::lamb_stage_1(settings_of(control), global_grad_norm, half_updates);
}

rules::LambStage2 lamb_stage_2_rule(const LambControl& control, float param_norm, float update_norm) {
  return rules::lamb_stage_2(settings_of(control), param_norm, update_norm);
}

rules::Larc larc_rule(const LarcControl& control, double param_norm, double grad_norm) {
  return rules::larc(settings_of(control), param_norm, grad_norm);
}

rules::ScaleUpdate scale_update_rule(const ScaleUpdateControl& control) {
  return {static_cast<float>(control.growth_factor), static_cast<float>(control.backoff_factor),
          static_cast<int32_t>(control.growth_interval), static_cast<int32_t>(control.hysteresis)};
}

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
    TORCH_INTERNAL_ASSERT(group.device == device_, op_, ": ", plan::name_of(lists_.front(), group.rows.front().index),
                          " is on ", group.device, " and others are on ", device_, ". Make one call for each device.");
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

namespace {

constexpr const char* kOp = "update_scale_hysteresis";

void check_element(const char* name, const at::Tensor& tensor, at::ScalarType dtype) {
  TORCH_INTERNAL_ASSERT(tensor.defined() && tensor.scalar_type() == dtype && tensor.numel() == 1, kOp, ": ", name,
                        " must be a tensor of one ", dtype, ".");
}

void check_device(const char* name, const at::Tensor& tensor, c10::Device device) {
  TORCH_INTERNAL_ASSERT(tensor.device() == device, kOp, ": ", name, " is on ", tensor.device(), " and scale on ", device,
                        ". Move them to one device.");
}

void update_on_cpu(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdateControl& control) {
  const rules::LossScale before = {tensors.scale.item<float>(), tensors.growth_tracker.item<int32_t>(),
                                   tensors.hysteresis_tracker.item<int32_t>()};
  const rules::LossScale after = scale_update_rule(control)(before, found_inf.item<int>() != 0);
  tensors.scale.fill_(after.scale);
  tensors.growth_tracker.fill_(after.growth);
  tensors.hysteresis_tracker.fill_(after.hysteresis);
}

}  // namespace

void update_scale_hysteresis(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdateControl& control) {
  const at::NoGradGuard no_grad;
  check_element("scale", tensors.scale, at::kFloat);
  check_element("growth_tracker", tensors.growth_tracker, at::kInt);
  check_element("hysteresis_tracker", tensors.hysteresis_tracker, at::kInt);
  plan::check_found_inf(kOp, found_inf);
  const c10::Device device = tensors.scale.device();
  TORCH_CHECK_NOT_IMPLEMENTED(device.is_cpu() || cuda::handles(device), kOp, " is not implemented for tensors on ", device,
                              ": move them to the CPU.");
  check_device("growth_tracker", tensors.growth_tracker, device);
  check_device("hysteresis_tracker", tensors.hysteresis_tracker, device);
  check_device("found_inf", found_inf, device);
  if (!cuda::handles(device)) return update_on_cpu(tensors, found_inf, control);
  cuda::update_scale(tensors, found_inf, control);
  bump_versions({tensors.scale, tensors.growth_tracker, tensors.hysteresis_tracker});
}

}  // namespace apex::kernels
