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
  /// Added to the variance before the square root.
  TORCH_ARG(double, eps) = 1e-5;
  /// The weight of a new batch in the running statistics; none: the running statistics are the mean over all batches.
  TORCH_ARG(std::optional<double>, momentum) = 0.1;
  /// Whether the module has a weight, initialized to ones, and a bias, initialized to zeros.
  TORCH_ARG(bool, affine) = true;
  /// Whether the module tracks running statistics, and uses them in evaluation.
  TORCH_ARG(bool, track_running_stats) = true;
  /// The ranks whose batches are joined; null: the default group when `forward` runs.
  TORCH_ARG(ProcessGroup, process_group);
  /// Whether the input has the shape [N, *, C] instead of [N, C, *]. An input [N, C, *] in LibTorch's channels-last memory
  /// format does not need this option.
  TORCH_ARG(bool, channel_last) = false;
  /// Whether a ReLU is applied to the output.
  TORCH_ARG(bool, fuse_relu) = false;
};

/// Batch normalization over the batches of all ranks of a process group. Apex: `apex.parallel.SyncBatchNorm`. PyTorch's own
/// class does not support CPU tensors.
///
/// Input: [N, C, *], or [N, *, C] with channel_last, 2-D to 5-D, in any memory layout, float16, bfloat16, float32 or float64,
/// on CPU or CUDA. N may differ between ranks, and be 0 on some. Output: shape and dtype of the input. Weight, bias and running
/// statistics may have another floating dtype than the input. Arithmetic is float32, or float64 for float64 input.
///
/// Training: each rank computes the statistics of its batch in one pass over memory. One collective operation gathers mean,
/// variance and count of all ranks in float64; the joined statistics weigh them by count. The output is normalized by the
/// biased variance; the running variance follows the unbiased variance. If the input requires a gradient, the backward pass
/// sums two numbers per channel over the ranks in one collective operation. Gradients of weight and bias are those of this
/// rank's batch; DistributedDataParallel averages them. Autograd runs the layers' backward passes in the reverse order of their
/// forward passes, so all ranks that run the same layers meet in the same operations.
///
/// Nothing is exchanged in evaluation with running statistics, in a group of one rank, and in a program without
/// `init_process_group`: the layer is plain batch norm then. On CUDA all work runs on the current stream. The host waits only
/// if momentum is none, for the number of batches.
///
/// Under amp the layer is a batch norm: keep_batchnorm_fp32 keeps it in FP32, and each level casts it as `torch::batch_norm`.
///
/// Errors, before anything is changed: RuntimeError for a shape that does not fit; ValueError if all ranks together have no
/// more than one value per channel (checked without waiting: on the CPU, and on CUDA for a group of one rank only). A second
/// derivative through several ranks is a NotImplementedError.
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, SyncBatchNormOptions>,
                          public amp::detail::BatchNormModule {
 public:
  using NormImplBase::NormImplBase;

  /// Adds `z`, of the input's shape, to the normalized input, before the ReLU of fuse_relu.
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

/// Makes every `torch::nn::BatchNorm1d`, `2d` and `3d` in `model` normalize over the batches of all ranks of `process_group`,
/// as `SyncBatchNorm` does (null: the default group when a forward pass runs). Returns `model`: a module, a holder or a
/// `shared_ptr`, also a handle that `amp::initialize` returned. Apex: `apex.parallel.convert_syncbn_model`.
///
///     auto net = apex::parallel::convert_syncbn_model(model);
///     auto [amp_net, opt] = apex::amp::initialize(net, optimizer, "O2");
///
/// The conversion is in place: the modules stay the same objects, also as members like `torch::nn::BatchNorm2d bn` and as
/// layers of a Sequential. Parameters, buffers, their names, and files are those of the unconverted model. Modules can be cast,
/// moved to a device, saved, loaded, cloned and switched to evaluation as before. One value changes: `options.eps()` becomes a
/// number 2e-11 of it away, by which the operator recognizes a converted module (design_notes.md says why). The arithmetic uses
/// the original eps. Setting another eps or building options anew undoes the conversion, and a module made of a converted
/// module's options is converted. `sync_batch_norm_options` reads the original eps, the group and channel_last back.
///
/// A second conversion replaces the group. `SyncBatchNorm` modules in the model get the group and channel_last; InstanceNorm is
/// left alone. With `channel_last` the layers' inputs are [N, *, C]. Converted layers check shapes and dtypes as before, so one
/// value per channel on a rank remains LibTorch's error; `SyncBatchNorm` itself accepts it. The group stays alive until the
/// process ends.
///
/// Warns about a module of another class with running_mean and running_var: such a batch norm is not synchronized.
/// Errors, before anything is changed: a null model; ValueError for an eps that is negative or not finite.
template <class Net>
Net convert_syncbn_model(Net&& model, const ProcessGroup& process_group = {}, bool channel_last = false) {
  detail::synchronize_batch_norms(amp::detail::module_in(model, "convert_syncbn_model"), process_group, channel_last);
  return std::forward<Net>(model);
}

/// The options by which a batch norm synchronizes: those of a `SyncBatchNorm`, or of a module that `convert_syncbn_model` has
/// converted, with the original eps, the group and channel_last. None for any other module.
std::optional<SyncBatchNormOptions> sync_batch_norm_options(const torch::nn::Module& module);

/// Divides the ranks into groups of `group_size` consecutive ranks; returns the group of this rank, or null, which stands for
/// all ranks, if `group_size` is 0. Every rank must call it. Apex: `apex.parallel.create_syncbn_process_group`. Errors:
/// ValueError unless group_size divides the number of ranks.
ProcessGroup create_syncbn_process_group(int group_size);

}  // namespace apex::parallel
