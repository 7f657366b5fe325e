#pragma once

#include <apex_cpp/amp/checkpoint/archive.h>
#include <apex_cpp/amp/checkpoint/parts.h>

#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace apex::amp {

/// What `load_checkpoint` found beside the training state.
struct LoadedCheckpoint {
  Metadata metadata;               // as the program gave it to `save_checkpoint`
  std::string opt_level;           // that it was saved at; empty: without amp
  std::string library_version;     // of apex_cpp that wrote it
  std::vector<std::string> notes;  // what was converted or left out; empty where everything came back as it was
};

namespace detail {
void save_checkpoint(const std::string& path, const SavedParts& parts, const Metadata& metadata);
LoadedCheckpoint load_checkpoint(const std::string& path, const LoadedParts& parts);

template <class T>
using EnableIfNotMetadata = std::enable_if_t<!std::is_convertible_v<const T&, const Metadata&>>;
}  // namespace detail

/// Writes everything that the rest of a training run depends on into one file: `models`' parameters and buffers in FP32,
/// `optimizers`' master weights, state, options and parameter groups, the loss scalers, the level and its properties, the
/// random number generators of CPU and GPUs, and `metadata`. A run that loads it continues bitwise as if it had not stopped.
///
/// `models`, `optimizers`: as `amp::initialize` takes or answers them, with amp or without: one, a vector or a tuple of
/// holders, modules, optimizers or pointers. Optimizers may be left out. What a module keeps outside parameters and buffers is
/// not saved. Gradients are not saved either: call it after `step`, not between the passes of one accumulation, whose gradients
/// a run that resumes would lack. Saving changes nothing.
///
/// The file is a safetensors file without pickled code: tensors by name ("model0/fc.weight"), the rest as JSON in its metadata.
/// The same state gives the same bytes. The file at `path` is replaced as a whole or not at all, whatever happens meanwhile.
/// Waits for the devices of the tensors. Errors, the old file is untouched: RuntimeError inside a `scale_loss` block, for an
/// optimizer that `initialize` has replaced or that was moved from, or that has state and does not override `save`, and for a
/// write that fails; ValueError for metadata that is not UTF-8.
template <class Models, class Optimizers, class = detail::EnableIfNotMetadata<Optimizers>>
void save_checkpoint(const std::string& path, const Models& models, const Optimizers& optimizers,
                     const Metadata& metadata = {}) {
  detail::SavedParts parts;
  detail::add_models(parts, models);
  detail::add_optimizers(parts, optimizers);
  detail::save_checkpoint(path, parts, metadata);
}
template <class Models>
void save_checkpoint(const std::string& path, const Models& models, const Metadata& metadata = {}) {
  detail::SavedParts parts;
  detail::add_models(parts, models);
  detail::save_checkpoint(path, parts, metadata);
}

/// Puts a checkpoint of `save_checkpoint` into models and optimizers of the same classes, in the same order, on any devices;
/// before or after the first backward pass alike. Optimizer options, learning rates among them, are the file's afterwards.
/// Gradients are left alone, with one exception: where an optimizer's next step was to be skipped after an overflow, its
/// gradients are dropped, and the step is not skipped.
///
/// The level may be another one. A parameter that had an FP32 master gets all its 32 bits where it is FP32 now; masters that
/// the file lacks are made from its FP32 parameters; state follows the parameters' dtypes. A static loss scale stays what it
/// is, a dynamic one is taken over from a dynamic one. All this is told in `notes`, and so are missing random number states and
/// another number of loss scalers.
///
/// Models alone get parameters and buffers (and their masters, if a living optimizer has some), and nothing else is touched.
///
/// Waits for the devices. Errors: c10::Error that names the file, what does not fit (the tensors by name, all at once) and the
/// remedy: a damaged file, another model, another optimizer class, other groups. Everything is checked before anything is
/// changed, and where an optimizer's own `load` fails, what was there is put back.
template <class Models, class Optimizers>
LoadedCheckpoint load_checkpoint(const std::string& path, Models&& models, Optimizers&& optimizers) {
  detail::LoadedParts parts;
  detail::add_models(parts, models);
  detail::add_optimizers(parts, optimizers);
  return detail::load_checkpoint(path, parts);
}
template <class Models>
LoadedCheckpoint load_checkpoint(const std::string& path, Models&& models) {
  detail::LoadedParts parts;
  detail::add_models(parts, models);
  return detail::load_checkpoint(path, parts);
}

/// Options of `amp::save_safetensors`.
class SaveSafetensorsOptions {
 public:
  /// Write the FP32 master of each parameter that has one, in place of the model's rounded values.
  SaveSafetensorsOptions& masters(bool on) { return masters_ = on, *this; }
  bool masters() const { return masters_; }
  /// Write a tied weight once, under its first name, and say so in the metadata: what Python's `safetensors.torch.load_model`
  /// expects. Otherwise it stands under each of its names, which suits `load_state_dict(load_file(...))`.
  SaveSafetensorsOptions& tied_once(bool on) { return tied_once_ = on, *this; }
  bool tied_once() const { return tied_once_; }
  /// Texts for the file's `__metadata__`, beside `format: pt`, which says that a PyTorch program wrote it.
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

/// Writes a model's weights into a safetensors file, which Python's package `safetensors` reads as well, and other programs:
/// every parameter and buffer under its name, as `named_parameters` has it, 16-bit ones widened to float32, like the
/// `state_dict` of a model that Apex patched.
///
/// `model`: what `amp::initialize` answered, or any module: a holder, a pointer, a `torch::nn::Module&`, with amp or without.
/// Only weights are written; `amp::save_checkpoint` writes what a run needs to go on.
///
/// The file at `path` is replaced as a whole or not at all. Tensors may be on any devices, which it waits for. Errors, the old
/// file is untouched: c10::Error naming path and reason if it cannot be written; ValueError naming the tensor for a dtype that
/// the format lacks, and for metadata that is not UTF-8.
template <class Net>
void save_safetensors(const std::string& path, const Net& model, const SaveSafetensorsOptions& options = {}) {
  detail::SavedParts parts;
  detail::add_models(parts, model);
  detail::save_safetensors(path, parts, options);
}

/// Reads weights from a safetensors file, whoever wrote it, into a model: into every parameter and buffer, rounded to its
/// dtype, and at O2 and O5 into the FP32 master of each parameter that has one. Of the names of a tied weight one is enough.
///
/// Waits for the model's devices. Errors, before anything is changed: c10::Error that names the file and all tensors that it
/// lacks, that the model lacks, or whose shape or kind of dtype differ; or what is wrong with a file that is damaged. The
/// file is checked before memory is taken for what it says that it holds.
template <class Net>
void load_safetensors(const std::string& path, Net&& model) {
  detail::LoadedParts parts;
  detail::add_models(parts, model);
  detail::load_safetensors(path, parts);
}

}  // namespace apex::amp
