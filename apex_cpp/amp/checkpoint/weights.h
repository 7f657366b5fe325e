#pragma once

#include <map>
#include <string>
#include <utility>

#include <apex_cpp/amp/checkpoint/parts.h>

namespace apex::amp {

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
