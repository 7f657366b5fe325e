#pragma once

#include "kernels/cuda/multi_tensor_cuda.h"
#include "kernels/cuda/run.h"
#include "kernels/optimizers.h"
#include "kernels/plan/reuse.h"

#include <vector>

namespace apex::kernels {

// The position of the parameters in the lists of updates that write copies.
constexpr size_t kParams = 1;

// Raises the tensors' version counters, by which autograd detects that a saved tensor was written to. Writes through pointers
// do not raise them.
void bump_versions(at::TensorList written);

// One call of an optimizer update: its lists, settings and tensors. The constructor checks everything, so that a failed check
// leaves all tensors unchanged.
class Update {
 public:
  // Appends `model_params` to `lists` unless it is empty.
  Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepSettings& settings,
         const StepTensors& tensors);
  Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const MomentSettings& settings,
         const StepTensors& tensors);

  // Throws c10::Error unless `tensor` is undefined, or has one element of `dtype` and is on the device of the updated tensors.
  void check_value(const char* name, const at::Tensor& tensor, at::ScalarType dtype) const;

  // Throws c10::Error unless `norms` are float32, one for each tensor, on the device of the updated tensors.
  void check_norms(const char* name, const at::Tensor& norms) const;

  // Whether found_inf forbids the update. A found_inf on the tensors' own CUDA device is not read here: the kernels read it.
  bool stopped() const { return stopped_; }

  // Whether there are model parameters, in the last list, and whether they are remainders of the parameters.
  bool copies() const { return copies_; }
  bool splits() const { return splits_; }
  size_t count() const { return lists_.front().tensors.size(); }

  // The device of the tensors. Throws c10::Error if there are several.
  c10::Device device() const;

  // The addresses of the step tensors that are on `device`.
  rules::StepAddresses addresses(c10::Device device) const;

  // The settings with the current values of the step tensors. For tensors on the CPU.
  template <class Settings>
  Settings current(const Settings& settings) const {
    return rules::read_settings(settings, addresses(c10::kCPU));
  }

  // Calls cpu(group) for each group on the CPU and cuda(call) for each CUDA device, unless the update is stopped.
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

  // Adds 1 to tensors.step, unless the update is stopped or a CUDA kernel has done so.
  void count_step() const;

 private:
  Update(const char* op, std::vector<plan::TensorList> lists, at::TensorList model_params, const StepTensors& tensors);

  void check_device(const char* name, const at::Tensor& tensor) const;
  void check_devices() const;
  bool has_remainders() const;
  // Whether the host has to read found_inf before anything runs.
  bool host_reads_found_inf() const;
  // Without elements there is still one call for a CUDA device: its kernel counts the step.
  std::vector<cuda::Call> cuda_calls() const;

  const char* op_;
  std::vector<plan::TensorList> lists_;
  StepTensors tensors_;
  plan::Groups groups_;
  c10::Device device_ = c10::kCPU;  // of the first tensor, one with elements if there is any
  bool copies_;
  bool splits_ = false;
  bool stopped_;
};

// Launches an Op, or the same Op for parameters with remainders.
template <class Op>
void run_on_cuda(const Update& update, const cuda::Call& call, const Op& op) {
  update.splits() ? cuda::run_update(call, cuda::Split<Op>{op}) : cuda::run_update(call, op);
}

template <class Op>
void run_sum_on_cuda(const Update& update, const cuda::Call& call, const Op& op) {
  update.splits() ? cuda::run_sum(call, cuda::Split<Op>{op}) : cuda::run_sum(call, op);
}

}  // namespace apex::kernels
