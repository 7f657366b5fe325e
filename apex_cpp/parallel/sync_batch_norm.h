#pragma once

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/parallel/processes/process_group.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <utility>

namespace apex::parallel {

/// Options of `SyncBatchNorm`, under Apex's names and with its defaults. The number of features may be given alone.
struct SyncBatchNormOptions {
  /* implicit */ SyncBatchNormOptions(int64_t num_features) : num_features_(num_features) {}

  /// C, the size of the dimension that is not normalized over.
  TORCH_ARG(int64_t, num_features);
  /// Added to the variance before its root is taken.
  TORCH_ARG(double, eps) = 1e-5;
  /// How much of the running statistics a batch replaces; none: they are the mean over all batches.
  TORCH_ARG(std::optional<double>, momentum) = 0.1;
  /// Whether there are a weight, which starts as ones, and a bias, which starts as zeros.
  TORCH_ARG(bool, affine) = true;
  /// Whether running statistics are kept, and used in evaluation.
  TORCH_ARG(bool, track_running_stats) = true;
  /// The ranks whose batches are joined; null: the default group as it is when `forward` runs.
  TORCH_ARG(ProcessGroup, process_group);
  /// Whether C is the last dimension of the input, [N, *, C], and not the second. (An input [N, C, *] that only lies in memory
  /// in this order, in LibTorch's channels-last format, needs no option.)
  TORCH_ARG(bool, channel_last) = false;
  /// Whether a ReLU comes last.
  TORCH_ARG(bool, fuse_relu) = false;
};

/// Batch normalisation over the batches of all ranks of a process group. Apex: `apex.parallel.SyncBatchNorm`; PyTorch's own
/// refuses CPU tensors.
///
/// Input: [N, C, *], or [N, *, C] with channel_last, 2-D to 5-D, in any memory layout, float16, bfloat16, float32 or float64,
/// on CPU or CUDA. N may differ between ranks, and be 0 on some. Output: shape and dtype of the input. Weight, bias and running
/// statistics may be wider or narrower than the input; arithmetic is float32, float64 for float64 input.
///
/// Training: the statistics of each rank's batch are computed in one go over its memory, and (mean, variance, count) of all
/// ranks are gathered in one collective operation, in float64, and weighed by the counts. The batch is normalized with the
/// biased variance; the running variance follows the unbiased one of the joined batch. The backward pass sums two numbers a
/// channel over the ranks in one collective operation, where the input needs a gradient; gradients of weight and bias are those
/// of this rank's batch alone, which DistributedDataParallel averages. Autograd runs the layers' backward passes in the reverse
/// order of their forward passes on every rank, so that all ranks meet in the same operation as long as they run the same
/// layers. Evaluation with running statistics, a group of one rank, and a program without `init_process_group`: plain batch
/// norm, nothing is exchanged. On CUDA everything runs on the current stream; nothing waits but, without momentum, for the
/// number of batches.
///
/// Under amp it is a batch norm: spared by keep_batchnorm_fp32, and cast at each level as `torch::batch_norm` is.
///
/// Errors (before anything is changed): RuntimeError for a shape that does not fit, ValueError where all ranks together have no
/// more than one value a channel (seen without waiting, hence on the CPU, and on CUDA for a group of one rank only). Where
/// other ranks are involved there is no second derivative: asking for one is a NotImplementedError.
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, SyncBatchNormOptions>,
                          public amp::detail::BatchNormModule {
 public:
  using NormImplBase::NormImplBase;

  /// `z`, of the input's shape, is added to what was normalized, before the ReLU of fuse_relu.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& z = {});
  void pretty_print(std::ostream& stream) const override;
  bool is_affine() const override { return options.affine(); }

 protected:
  void _check_input_dim(const at::Tensor& input) override;
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())})

 private:
  at::Tensor normalize(const at::Tensor& input);
  bool tracks_now() const;
  double momentum_of_this_batch() const;
};
TORCH_MODULE(SyncBatchNorm);

namespace detail {

void synchronize_batch_norms(torch::nn::Module& model, const ProcessGroup& group, bool channel_last);

}  // namespace detail

/// Makes every `torch::nn::BatchNorm1d`, `2d` and `3d` in `model` normalize over the batches of all ranks of `process_group`
/// (null: the default group, as it is when a forward pass runs), as `SyncBatchNorm` does, and answers `model`: a module, holder
/// or `shared_ptr`, also one that `amp::initialize` has answered. Apex: `apex.parallel.convert_syncbn_model`.
///
///     auto net = apex::parallel::convert_syncbn_model(model);
///     auto [amp_net, opt] = apex::amp::initialize(net, optimizer, "O2");
///
/// In place, and wherever a program holds them: the modules remain the objects that they are, members like
/// `torch::nn::BatchNorm2d bn` and the layers of a Sequential included; parameters, buffers, names and the optimizer's view of
/// them do not change, and the modules may be cast, moved to a device, saved, loaded, cloned and switched to evaluation as
/// before. What changes is `options.eps()`, in its last digits (2e-11 of it), by which the operator knows these modules;
/// setting another eps or building options anew undoes it, and a module made of a converted one's options is converted. A call
/// computes with the eps as it was. A second conversion replaces the group. `SyncBatchNorm` modules in the model get the group
/// and channel_last; InstanceNorm is left alone.
///
/// `channel_last`: the layers' inputs are [N, *, C]. Converted layers check shapes and dtypes as before, so that one value per
/// channel on a rank remains LibTorch's error there; `SyncBatchNorm` by its name takes it.
/// A group that was given lives until the program ends.
/// Warns of a module of another class that has running_mean and running_var: its batch norm is its own, and not synchronized.
/// Errors, before anything is changed: a null model; ValueError for an eps that is negative or not finite.
template <class Net>
Net convert_syncbn_model(Net&& model, const ProcessGroup& process_group = {}, bool channel_last = false) {
  detail::synchronize_batch_norms(amp::detail::module_in(model, "convert_syncbn_model"), process_group, channel_last);
  return std::forward<Net>(model);
}

/// A group of `group_size` consecutive ranks, the one that this rank is in; null, which stands for all ranks, for 0. Every rank
/// calls it. Apex: `apex.parallel.create_syncbn_process_group`.
/// Errors: ValueError unless group_size divides the number of ranks.
ProcessGroup create_syncbn_process_group(int group_size);

}  // namespace apex::parallel
