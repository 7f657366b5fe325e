#include "kernels/update.h"

#include "kernels/cuda/multi_tensor_cuda.h"
#include "kernels/plan/plan.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace apex::kernels {

using plan::Access;

namespace {

// The device that an update runs on, also if the list or all of its tensors are empty.
c10::Device device_of(const plan::Groups& groups, at::TensorList list, const at::Tensor& step) {
  if (groups->size() != 0) return (*groups)[0].device;
  if (!list.empty()) return list[0].device();
  return step.defined() ? step.device() : c10::Device(c10::kCPU);
}

StepTensors without_step(StepTensors tensors) {
  tensors.step.reset();
  return tensors;
}

template <class Value>
const Value* address_if_on(c10::Device device, const at::Tensor& tensor) {
  return tensor.defined() && tensor.device() == device ? tensor.const_data_ptr<Value>() : nullptr;
}

template <class Value>
Value* writable_if_on(c10::Device device, const at::Tensor& tensor) {
  return tensor.defined() && tensor.device() == device ? tensor.mutable_data_ptr<Value>() : nullptr;
}

}  // namespace

void bump_versions(at::TensorList written) {
  constexpr int64_t kAtOnce = 1024;
  // Inference tensors have no version, and the threads are not in inference mode.
  at::parallel_for(0, static_cast<int64_t>(written.size()), kAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const at::Tensor& tensor = written[static_cast<size_t>(i)];
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  });
}

Update::Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepTensors& tensors)
    : op_(op), lists_(std::move(lists)), tensors_(tensors), copies_(!model_params.empty()) {
  if (copies_) lists_.push_back({"model_params", model_params, Access::write});
  if (copies_) lists_.back().takes_remainders = true;
  if (tensors_.found_inf.defined()) plan::check_found_inf(op, tensors_.found_inf);
  for (plan::TensorList& list : lists_) list.takes_double = false;
  groups_ = plan::checked_groups(op, lists_);
  device_ = device_of(groups_, lists_.front().tensors, tensors_.step);
  check_devices();
  splits_ = copies_ && has_remainders();
  check_value("tensors.grad_scale", tensors_.grad_scale, at::kFloat);
  check_value("tensors.lr", tensors_.lr, at::kFloat);
  check_value("tensors.step", tensors_.step, at::kInt);
  stopped_ = host_reads_found_inf() && tensors_.found_inf.item<int>() != 0;
}

Update::Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepSettings&,
               const StepTensors& tensors)
    : Update(op, std::move(lists), model_params, without_step(tensors)) {}

Update::Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const MomentSettings& settings,
               const StepTensors& tensors)
    : Update(op, std::move(lists), model_params, tensors) {
  TORCH_CHECK_VALUE(tensors.step.defined() || settings.step >= 1, op, ": step is ", settings.step,
                    ". Steps are counted from 1.");
}

bool Update::has_remainders() const {
  const plan::TensorList& params = lists_[kParams];
  const at::TensorList remainders = lists_.back().tensors;
  size_t found = 0;
  for (size_t i = 0; i < remainders.size(); ++i) {
    if (!plan::is_remainder(remainders[i].scalar_type())) continue;
    ++found;
    TORCH_CHECK(params.tensors[i].scalar_type() == at::kBFloat16, op_, ": ", plan::name_of(lists_.back(), i), " has dtype ",
                remainders[i].scalar_type(), " and ", plan::name_of(params, i), " has ", params.tensors[i].scalar_type(),
                ". Only BFloat16 parameters have remainders: pass a copy of another dtype, or none.");
  }
  TORCH_CHECK(found == 0 || found == remainders.size(), op_, ": ", found, " of the ", remainders.size(),
              " model_params are remainders and the others copies. Make one call for each kind.");
  return found != 0;
}

rules::StepAddresses Update::addresses(c10::Device device) const {
  return {writable_if_on<int32_t>(device, tensors_.found_inf), address_if_on<float>(device, tensors_.grad_scale),
          address_if_on<float>(device, tensors_.lr), writable_if_on<int32_t>(device, tensors_.step)};
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

bool Update::host_reads_found_inf() const {
  const at::Tensor& found_inf = tensors_.found_inf;
  if (!found_inf.defined()) return false;
  if (!cuda::handles(found_inf.device()) || found_inf.device() != device_) return true;
  return groups_->size() != 0 && !cuda::whole_call(groups_, device_).has_value();
}

std::vector<cuda::Call> Update::cuda_calls() const {
  if (groups_->size() == 0 && cuda::handles(device_)) return {{groups_, device_}};
  return cuda::calls_of(groups_);
}

void Update::count_step() const {
  if (stopped_ || !tensors_.step.defined() || cuda::handles(device_)) return;
  if (!tensors_.step.is_cpu()) return void(tensors_.step.add_(1));
  ++*tensors_.step.mutable_data_ptr<int32_t>();  // add_ would take memory, after the update
  bump_versions(tensors_.step);
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

void update_on_cpu(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdate& update) {
  const rules::LossScale before = {tensors.scale.item<float>(), tensors.growth_tracker.item<int32_t>(),
                                   tensors.hysteresis_tracker.item<int32_t>()};
  const rules::LossScale after = update(before, found_inf.item<int>() != 0);
  tensors.scale.fill_(after.scale);
  tensors.growth_tracker.fill_(after.growth);
  tensors.hysteresis_tracker.fill_(after.hysteresis);
}

}  // namespace

void update_scale_hysteresis(const LossScaleTensors& tensors, const at::Tensor& found_inf, const ScaleUpdate& update) {
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
  if (!cuda::handles(device)) return update_on_cpu(tensors, found_inf, update);
  cuda::update_scale(tensors, found_inf, update);
  bump_versions({tensors.scale, tensors.growth_tracker, tensors.hysteresis_tracker});
}

}  // namespace apex::kernels
