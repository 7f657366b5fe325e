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

/// Averages gradients over processes on request, without hooks in backward passes. Apex: `apex.parallel.Reducer`.
///
///     apex::parallel::Reducer reducer(*model);      // all ranks now have rank 0's parameters
///     loss.backward();
///     reducer.reduce();                             // all ranks now have the mean gradients
class Reducer {
 public:
  /// Broadcasts the module's parameters, and their masters, from rank 0 of `group` (null: the default group). Errors: a null
  /// model; ValueError, on every rank, if parameters or buffers differ between ranks in number, name, shape, memory order,
  /// dtype, kind of device or requires_grad, or amp's settings differ.
  explicit Reducer(const torch::nn::Module& module, const ProcessGroup& group = nullptr);
  template <class Impl>
  explicit Reducer(const torch::nn::ModuleHolder<Impl>& module, const ProcessGroup& group = nullptr)
      : Reducer(static_cast<const torch::nn::Module&>(amp::detail::module_in(module, "Reducer")), group) {}
  template <class Impl>
  explicit Reducer(const std::shared_ptr<Impl>& module, const ProcessGroup& group = nullptr)
      : Reducer(static_cast<const torch::nn::Module&>(amp::detail::module_in(module, "Reducer")), group) {}
  /// Takes gradients, in the same order on every rank. Broadcasts nothing.
  explicit Reducer(std::vector<at::Tensor> grads, const ProcessGroup& group = nullptr);

  /// Replaces each gradient by the mean over the ranks. For a module: each defined gradient; the ranks must have the same ones.
  void reduce();

 private:
  ProcessGroup group_;
  std::vector<at::Tensor> params_, grads_;
};

/// The guard that `share_overflow` returns.
class [[nodiscard]] OverflowSharing {
 public:
  explicit OverflowSharing(ProcessGroup group);
  OverflowSharing(OverflowSharing&& other) noexcept;
  OverflowSharing& operator=(OverflowSharing&&) = delete;
  ~OverflowSharing();

 private:
  std::shared_ptr<const amp::detail::OverflowExchange> exchange_;  // null after a move
};

/// During the lifetime of the result, the processes of `group` (null: the default group) share overflows: at the end of every
/// `amp::scale_loss` block that checks for overflow, all of them skip the step if one has found an overflow; `amp::step_result`
/// has its rank. For models whose parts lie on different processes, and for gradients that are averaged after the block or not
/// at all. DistributedDataParallel does not need it, because it reduces before amp checks. All processes must open and end the
/// same blocks. Each block costs one small collective operation, for which the host waits. Of several results the newest that
/// lives is in force; they may end in any order, the same one on all processes.
inline OverflowSharing share_overflow(const ProcessGroup& group = nullptr) { return OverflowSharing(or_default(group)); }

}  // namespace apex::parallel
