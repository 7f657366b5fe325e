#pragma once

#include <ATen/core/Tensor.h>
#include <apex_cpp/amp/tensors/module_in.h>
#include <apex_cpp/parallel/processes/process_group.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <vector>

namespace apex::parallel {

/// Averages gradients over processes when it is told to, with nothing hooked into backward passes. Apex:
/// `apex.parallel.Reducer`.
///
///     apex::parallel::Reducer reducer(*model);      // every rank has rank 0's parameters now
///     loss.backward();
///     reducer.reduce();                             // and now the mean of all gradients
class Reducer {
 public:
  /// Broadcasts the module's parameters from rank 0 of `group` (null: the default group). Errors: a null model; ValueError, on
  /// every rank, for ranks whose parameters differ in number, name, shape or dtype.
  explicit Reducer(const torch::nn::Module& module, const ProcessGroup& group = nullptr);
  template <class Impl>
  explicit Reducer(const torch::nn::ModuleHolder<Impl>& module, const ProcessGroup& group = nullptr)
      : Reducer(static_cast<const torch::nn::Module&>(amp::detail::module_in(module, "Reducer")), group) {}
  template <class Impl>
  explicit Reducer(const std::shared_ptr<Impl>& module, const ProcessGroup& group = nullptr)
      : Reducer(static_cast<const torch::nn::Module&>(amp::detail::module_in(module, "Reducer")), group) {}
  /// Gradients themselves, in the same order on every rank; nothing is broadcast.
  explicit Reducer(std::vector<at::Tensor> grads, const ProcessGroup& group = nullptr);

  /// Each gradient becomes the mean over the ranks, in place; of a module, those that there are. Ranks must agree on which
  /// those are.
  void reduce();

 private:
  ProcessGroup group_;
  std::vector<at::Tensor> params_, grads_;
};

}  // namespace apex::parallel
