#include <apex_cpp/amp/checkpoint/weights.h>

#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/checkpoint/model_content.h>
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/session/session.h>
#include <apex_cpp/amp/tensors/model_tensors.h>

namespace apex::amp::detail {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using Values = std::map<std::string, at::Tensor>;

/// Gives each tensor that has several names in the model its value under all of them: Python's `save_model` writes only one.
void add_tied_names(const NamedTensors& tensors, Values& values) {
  std::map<const at::TensorImpl*, at::Tensor> found;
  for (const auto& [name, tensor] : tensors) {
    const auto value = values.find(name);
    if (value != values.end()) found.emplace(tensor.unsafeGetTensorImpl(), value->second);
  }
  for (const auto& [name, tensor] : tensors) {
    const auto value = found.find(tensor.unsafeGetTensorImpl());
    if (value != found.end()) values.emplace(name, value->second);
  }
}

template <class Parts>
auto& one_model(const Parts& parts) {
  TORCH_CHECK_VALUE(parts.models.size() == 1, "a safetensors file holds the weights of one model, ", parts.models.size(),
                    " were given. Give each a file of its own.");
  return *parts.models[0];
}

/// The session that keeps the model's masters: its handle's, or the newest; null without amp.
template <class Parts>
std::shared_ptr<Session> session_with_masters(const Parts& parts) {
  return parts.session ? parts.session : current_session();
}

void check_values(const std::string& path, const torch::nn::Module& model, const Values& values) {
  std::vector<ModelTensor> content;
  for (const auto& [name, value] : values) content.push_back({name, c10::toString(value.scalar_type()), value});
  try {
    check_fits(model, content, "this one");
  } catch (const c10::Error& error) {
    C10_THROW_ERROR(Error, "cannot load '" + path + "': " + error.what_without_backtrace());
  }
}

}  // namespace

void save_safetensors(const std::string& path, const SavedParts& parts, const SaveSafetensorsOptions& options) {
  const auto& model = one_model(parts);
  const auto session = options.masters() ? session_with_masters(parts) : nullptr;
  TensorFile file;
  file.metadata = options.metadata();
  file.metadata.emplace("format", "pt");
  std::map<const at::TensorImpl*, std::string> first_names;
  for (const auto& [name, tensor] : tensors_of(model)) {
    const auto [first, is_first] = first_names.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_first && options.tied_once()) {
      file.metadata.emplace(name, first->second);
      continue;
    }
    const at::Tensor master = session ? session->master_of(tensor) : at::Tensor();
    file.tensors.emplace_back(name, master.defined() ? master : widened(tensor));
  }
  write_safetensors(path, file);
}

void load_safetensors(const std::string& path, const LoadedParts& parts) {
  auto& model = one_model(parts);
  const auto tensors = tensors_of(model);
  const TensorFile file = read_safetensors(path);
  TORCH_CHECK(!is_checkpoint(file), "cannot load '", path,
              "' as weights alone: it is a checkpoint of amp::save_checkpoint. Read it with amp::load_checkpoint.");
  Values values(file.tensors.begin(), file.tensors.end());
  add_tied_names(tensors, values);
  check_values(path, model, values);
  const auto session = session_with_masters(parts);
  for (const auto& [name, tensor] : tensors) {
    give_each_element_memory(tensor);
    assign(tensor, values.at(name), session.get());
  }
  if (session) forget_overwritten_masters(*session);
  if (session) session->clear_cast_cache();
}

}  // namespace apex::amp::detail
