#include "recorder.h"

#include <apex_cpp/amp.h>
#include <apex_cpp/amp/comparison/measurement.h>
#include <apex_cpp/files/csv.h>
#include <apex_cpp/optimizers/fused_optimizer.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace comparison {
namespace {

namespace amp = apex::amp;

// Memory is that of this step, or of the last one before it: the optimizer has its state then, and a dynamic loss scale has
// mostly settled.
constexpr int64_t kMeasuredStep = 5;

void wait_for(at::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

std::string dtype_of(const at::Tensor& tensor) { return tensor.defined() ? c10::toString(tensor.scalar_type()) : ""; }

// The dtype of what the optimizer keeps beside a parameter in place of a master: that of its remainder, or "stochastic" for
// nothing. "" if it has a master, or needs none.
std::string beside(const at::Tensor& param, torch::optim::Optimizer& optimizer) {
  const auto* fused = dynamic_cast<const apex::optimizers::FusedOptimizer*>(&optimizer);
  if (!fused || !fused->keeps_masters_of(param.scalar_type())) return "";
  const auto state = optimizer.state().find(param.unsafeGetTensorImpl());
  if (state == optimizer.state().end()) return "";
  const at::Tensor& remainder = static_cast<const apex::optimizers::ShapedParamState&>(*state->second).remainder;
  return remainder.defined() ? dtype_of(remainder) : "stochastic";
}

}  // namespace

double Recorder::milliseconds_since_mark() {
  wait_for(device_);
  const auto now = Clock::now();
  const auto passed = std::chrono::duration<double, std::milli>(now - mark_).count();
  mark_ = now;
  return passed;
}

void Recorder::step_begins() {
  now_ = {};
  now_.step = ++step_;
  if (step_ <= kMeasuredStep) memory_.begin();
  milliseconds_since_mark();
}

void Recorder::loss_is_there() {
  now_.forward = milliseconds_since_mark();
  memory_.mark_forward();
}

// Masters have gradients from here to the end of the step.
void Recorder::gradients_are_there(const torch::optim::Optimizer& optimizer) {
  now_.backward = milliseconds_since_mark();
  if (step_ > kMeasuredStep) return;
  grad_dtypes_.clear();
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& param : group.params()) grad_dtypes_.push_back(dtype_of(param.grad()));
  }
  milliseconds_since_mark();
}

void Recorder::step_ends() {
  now_.optimizer = milliseconds_since_mark();
  times_.push_back(now_);
  if (step_ <= kMeasuredStep) memory_.end();
}

// amp has a master, or the model's own parameter, for each that the optimizer was given: all of the model's, in order.
void Recorder::training_ends(train::Network& net, torch::optim::Optimizer& optimizer, double loss_scale) {
  const auto stepped = amp::master_params(optimizer);
  parameters_ = "parameter,numel,dtype,grad_dtype,master_dtype,master_grad_dtype\n";
  loss_scale_ = loss_scale;
  if (!weights_.empty()) amp::save_safetensors(weights_, net, amp::SaveSafetensorsOptions().masters(true));
  size_t position = 0;
  for (const auto& named : net->named_parameters()) {
    const auto& param = named.value();
    const bool has_master = !stepped.at(position).is_same(param);
    parameters_ += apex::csv_row(named.key(), param.numel(), dtype_of(param), dtype_of(param.grad()),
                                 has_master ? dtype_of(stepped[position]) : beside(param, optimizer),
                                 has_master ? grad_dtypes_.at(position) : "");
    ++position;
  }
}

Recorder::Times Recorder::median_times() const {
  const auto settling = std::min(kMeasuredStep, static_cast<int64_t>(times_.size()) / 2);
  const auto median = [&](double Times::*part) {
    std::vector<double> values;
    for (auto each = times_.begin() + settling; each != times_.end(); ++each) values.push_back((*each).*part);
    return apex::amp::detail::median_interval(std::move(values)).median;
  };
  return {step_, median(&Times::forward), median(&Times::backward), median(&Times::optimizer)};
}

std::string Recorder::times() const {
  std::string rows = "step,forward_ms,backward_ms,optimizer_ms\n";
  for (const auto& each : times_) rows += apex::csv_row(each.step, each.forward, each.backward, each.optimizer);
  return rows;
}

std::string Recorder::memory() const {
  return "step,saved_for_backward,peak\n" +
         apex::csv_row(std::min(step_, kMeasuredStep), memory_.after_forward(), memory_.peak());
}

}  // namespace comparison
