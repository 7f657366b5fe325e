#pragma once

#include <apex_cpp/amp/checkpoint/parts.h>
#include <apex_cpp/amp/grad_scaler.h>

#include <string>
#include <vector>

namespace apex::amp {

namespace detail {
void save_for_python(const std::string& path, const SavedParts& parts, const GradScaler* scaler);
std::vector<std::string> load_from_python(const std::string& path, const LoadedParts& parts, GradScaler* scaler);
}  // namespace detail

/// Writes a training state for Python: a model's weights and buffers, the state of `optimizer` as
/// `torch.optim.Optimizer.state_dict()` has it, and a loss scale as `torch.amp.GradScaler.state_dict()` has it. In Python,
/// `apex_cpp.training_state.load(path, model, optimizer, scaler)` of the wheel reads it. To resume in C++ use
/// `amp::save_checkpoint`, which also writes the random number generators and all loss scalers.
///
/// `model`, `optimizer`: one of each, before or after `amp::initialize`, or without amp. Weights are FP32 masters where there
/// are some; other 16-bit weights, buffers and states are widened to float32. Python's class of the optimizer has the same name
/// for `torch::optim::SGD`, `Adam`, `AdamW`, `RMSprop` and `Adagrad`; it is `SGD` for `FusedSGD`, `Adagrad` for `FusedAdagrad`,
/// and for `FusedAdam` `AdamW`, or `Adam` without `adam_w_mode`. FusedAdagrad counts no steps: Python's count starts at 0,
/// which only `lr_decay` reads. The loss scale is that of `scaler`, or else of amp's loss scaler if it is dynamic; otherwise
/// the file has none. Call it after `step` and `update`.
///
/// The file is a safetensors file: weights as "model/fc.weight", states as "optimizer/state/0/exp_avg", everything else as JSON
/// in its metadata. It is replaced as a whole or not at all. The host waits for the devices of the tensors. Errors, after which
/// the old file is unchanged: RuntimeError inside a `scale_loss` block, for several models, optimizers or loss scalers, for
/// another class of optimizer, for options that Python's class lacks (`bias_correction(false)`, `wd_after_momentum`,
/// `adagrad_w_mode`), for a parameter that the model does not have, and for a failed write; ValueError for a number that is not
/// finite.
template <class Net, class Optimizer>
void save_for_python(const std::string& path, const Net& model, const Optimizer& optimizer) {
  detail::save_for_python(path, detail::parts_of<detail::SavedParts>(model, optimizer), nullptr);
}
template <class Net, class Optimizer>
void save_for_python(const std::string& path, const Net& model, const Optimizer& optimizer, const GradScaler& scaler) {
  detail::save_for_python(path, detail::parts_of<detail::SavedParts>(model, optimizer), &scaler);
}

/// Reads a training state that Python's `apex_cpp.training_state.save(path, model, optimizer, scaler)` or
/// `amp::save_for_python` has written, into a model and an optimizer with the same parameters in the same groups and order.
/// Weights are rounded to the model's dtypes, and go to the FP32 masters unrounded. Options, also learning rates, become those
/// of the file; options that Python lacks stay. The loss scale goes to `scaler`, or else to amp's loss scaler if it is dynamic.
/// Gradients stay. Returns notes: conversions, and a loss scale that was not loaded; empty if everything was taken as it is.
///
/// The host waits for the devices. Errors, before anything is changed: c10::Error with the file, the wrong tensor or value, and
/// the remedy: for a damaged file, other parameters, shapes, dtypes or groups, another class of optimizer, options, states or
/// steps that Python would not write, a scale that is not positive and finite in float32, and a `scaler` for which the file has
/// no scale.
template <class Net, class Optimizer>
std::vector<std::string> load_from_python(const std::string& path, Net&& model, Optimizer&& optimizer) {
  return detail::load_from_python(path, detail::parts_of<detail::LoadedParts>(model, optimizer), nullptr);
}
template <class Net, class Optimizer>
std::vector<std::string> load_from_python(const std::string& path, Net&& model, Optimizer&& optimizer, GradScaler& scaler) {
  return detail::load_from_python(path, detail::parts_of<detail::LoadedParts>(model, optimizer), &scaler);
}

}  // namespace apex::amp
