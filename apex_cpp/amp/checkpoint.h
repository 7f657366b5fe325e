#pragma once

#include <apex_cpp/amp/checkpoint/archive.h>
#include <apex_cpp/amp/checkpoint/parts.h>

#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace apex::amp {

/// The contents of a checkpoint beside the training state, as `load_checkpoint` returns them.
struct LoadedCheckpoint {
  Metadata metadata;               // as passed to `save_checkpoint`
  std::string opt_level;           // the level of the saved run; empty if it ran without amp
  std::string library_version;     // the version of apex_cpp that wrote the file
  std::vector<std::string> notes;  // conversions and omissions; empty if everything was restored exactly
};

namespace detail {
void save_checkpoint(const std::string& path, const SavedParts& parts, const Metadata& metadata);
LoadedCheckpoint load_checkpoint(const std::string& path, const LoadedParts& parts);

template <class T>
using EnableIfNotMetadata = std::enable_if_t<!std::is_convertible_v<const T&, const Metadata&>>;
}  // namespace detail

/// Writes the whole training state into one file: `models`' parameters and buffers in FP32; `optimizers`' master weights,
/// state, options and parameter groups; the loss scalers; the level and its properties; the random number generators of CPU and
/// GPUs; and `metadata`. A run that loads the file continues bitwise as if it had not stopped. An `amp::GradScaler` and
/// learning-rate schedulers are not in it: put the entries of their `state_dict()` into the metadata.
///
/// With several processes the random number generators are those of the process that writes the file, and each process that
/// loads the file gets them. Where ranks draw numbers of their own (dropout, augmentation), call `torch::manual_seed` after the
/// load, with another seed on each rank and at each start.
///
/// `models`, `optimizers`: one holder, module, optimizer or pointer, or a vector or tuple of them, before or after
/// `amp::initialize`, or without amp. Optimizers may be left out. Members of a module beside parameters and buffers are not
/// saved. Gradients are not saved: call it after `step`, not between the passes of a gradient accumulation. Saving changes
/// nothing.
///
/// The file is a safetensors file without pickled code: tensors by name ("model0/fc.weight"), everything else as JSON in its
/// metadata. The same state gives the same bytes. The file at `path` is replaced as a whole or not at all. The host waits for
/// the devices of the tensors. Errors, after which the old file is unchanged: RuntimeError inside a `scale_loss` block, for an
/// optimizer that `initialize` has replaced, that was moved from, or that has state and does not override `save`, and for a
/// failed write; ValueError for metadata that is not UTF-8.
template <class Models, class Optimizers, class = detail::EnableIfNotMetadata<Optimizers>>
void save_checkpoint(const std::string& path, const Models& models, const Optimizers& optimizers,
                     const Metadata& metadata = {}) {
  detail::save_checkpoint(path, detail::parts_of<detail::SavedParts>(models, optimizers), metadata);
}
template <class Models>
void save_checkpoint(const std::string& path, const Models& models, const Metadata& metadata = {}) {
  detail::save_checkpoint(path, detail::parts_of<detail::SavedParts>(models), metadata);
}

/// Loads a file of `save_checkpoint` into models and optimizers of the same classes, in the same order, on any devices, before
/// or after the first backward pass. Optimizer options, also learning rates, become those of the file. Gradients stay, with one
/// exception: if an optimizer's next step was to be skipped after an overflow, its gradients are dropped, and the step is not
/// skipped.
///
/// The level may differ. A parameter that had an FP32 master and is FP32 now gets the master's bits. Masters that the file
/// lacks are made from its FP32 parameters. State gets the dtypes of the parameters. A static loss scale stays; a dynamic loss
/// scale is loaded from a dynamic one. `notes` lists these conversions, missing random number states, and a different number of
/// loss scalers.
///
/// With models alone, only parameters and buffers are loaded, and their masters if a living optimizer has some.
///
/// The host waits for the devices. Errors: c10::Error with the file, the differences (all tensors by name) and the remedy, for
/// a damaged file, another model, another optimizer class, and other groups. All checks come before any change. If an
/// optimizer's own `load` fails, the old state is restored. If memory runs out while models are written, the error says so, and
/// the file can be loaded again.
template <class Models, class Optimizers>
LoadedCheckpoint load_checkpoint(const std::string& path, Models&& models, Optimizers&& optimizers) {
  return detail::load_checkpoint(path, detail::parts_of<detail::LoadedParts>(models, optimizers));
}
template <class Models>
LoadedCheckpoint load_checkpoint(const std::string& path, Models&& models) {
  return detail::load_checkpoint(path, detail::parts_of<detail::LoadedParts>(models));
}

/// Options of `amp::save_safetensors`.
class SaveSafetensorsOptions {
 public:
  /// Write the FP32 master of each parameter that has one, in place of the model's rounded values.
  SaveSafetensorsOptions& masters(bool on) { return masters_ = on, *this; }
  bool masters() const { return masters_; }
  /// Write a tied weight once, under its first name, and record the tie in the metadata, as Python's
  /// `safetensors.torch.load_model` expects. Otherwise write it under each of its names, as `load_state_dict(load_file(...))`
  /// expects.
  SaveSafetensorsOptions& tied_once(bool on) { return tied_once_ = on, *this; }
  bool tied_once() const { return tied_once_; }
  /// Entries for the file's `__metadata__`, in addition to `format: pt`, the mark of PyTorch programs.
  SaveSafetensorsOptions& metadata(std::map<std::string, std::string> texts) { return metadata_ = std::move(texts), *this; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  bool masters_ = false;
  bool tied_once_ = false;
  std::map<std::string, std::string> metadata_;
};

namespace detail {
void save_safetensors(const std::string& path, const SavedParts& parts, const SaveSafetensorsOptions& options);
void load_safetensors(const std::string& path, const LoadedParts& parts);
}  // namespace detail

/// Writes a model's weights into a safetensors file, which Python's package `safetensors` and other programs can read: every
/// parameter and buffer under its name in `named_parameters`, with 16-bit tensors widened to float32, like the `state_dict` of
/// a model that Apex patched.
///
/// `model`: the handle of `amp::initialize`, or any holder, pointer or `torch::nn::Module&`. To resume a run, use
/// `amp::save_checkpoint`, which writes more than weights.
///
/// The file at `path` is replaced as a whole or not at all. Tensors may be on any devices; the host waits for them. Errors,
/// after which the old file is unchanged: c10::Error with path and reason for a failed write; ValueError with the tensor's name
/// for a dtype that the format lacks, and for metadata that is not UTF-8; RuntimeError for `masters(true)` where a sharded
/// optimizer has the masters: save the rounded values, without the option, or a checkpoint.
template <class Net>
void save_safetensors(const std::string& path, const Net& model, const SaveSafetensorsOptions& options = {}) {
  detail::save_safetensors(path, detail::parts_of<detail::SavedParts>(model), options);
}

/// Reads weights from a safetensors file of any program into every parameter and buffer of a model, rounded to their dtypes,
/// and at O2, O5 and O6 also into the FP32 masters. For a tied weight, one of its names in the file is enough.
///
/// The host waits for the model's devices. Errors, before anything is changed: c10::Error with the file and all tensors that
/// the file or the model lacks, or whose shape or kind of dtype differs; or with the defect of a damaged file. Sizes in the
/// header are checked before memory is allocated.
template <class Net>
void load_safetensors(const std::string& path, Net&& model) {
  detail::load_safetensors(path, detail::parts_of<detail::LoadedParts>(model));
}

}  // namespace apex::amp
