#pragma once

#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/parallel/processes/process_group.h>

#include <ATen/core/Tensor.h>
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

/// While it lives, processes share overflows: `share_overflow`.
class [[nodiscard]] OverflowSharing {
 public:
  explicit OverflowSharing(ProcessGroup group);
  OverflowSharing(OverflowSharing&& other) noexcept;
  OverflowSharing& operator=(OverflowSharing&&) = delete;
  ~OverflowSharing();

 private:
  amp::detail::OverflowExchange before_;
  bool in_force_ = true;
};

/// At the end of every `amp::scale_loss` block that looks for overflow, the processes of `group` (null: the default group) tell
/// each other whether they have found one, and all skip the step if one has; `amp::step_result` names the ranks. For models
/// whose parts lie on different processes, and gradients that are averaged after the block or not at all:
/// DistributedDataParallel, which reduces before amp looks, needs none of it. All of them must open and end the same blocks.
/// One small collective operation for each block; the host waits for it.
inline OverflowSharing share_overflow(const ProcessGroup& group = nullptr) { return OverflowSharing(or_default(group)); }

}  // namespace apex::parallel
