#pragma once

#include <torch/nn/module.h>

#include <utility>

#include <apex_cpp/amp/tensors/module_in.h>
#include <apex_cpp/parallel/processes/process_group.h>

namespace apex::parallel {

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
