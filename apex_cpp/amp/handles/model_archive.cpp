#include <apex_cpp/amp/handles/amped.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/session/session.h>
#include <apex_cpp/amp/tensors/model_tensors.h>

#include <vector>

namespace apex::amp::detail {
namespace {

/// One entry of a checkpoint and where it goes.
struct Entry {
  at::Tensor target;
  at::Tensor value;
};

void read_entry(const std::string& path, const std::string& key, at::Tensor& target, bool is_buffer,
                torch::serialize::InputArchive& archive, std::vector<Entry>& entries) {
  if (!target.defined()) return;
  Entry entry{target, {}};
  TORCH_CHECK(archive.try_read(key, entry.value, is_buffer), "The checkpoint has no entry '", path, key,
              "'. It was saved from another model.");
  TORCH_CHECK(entry.value.sizes() == target.sizes(), "The checkpoint's '", path, key, "' has shape ", entry.value.sizes(),
              ", the model's has ", target.sizes(), ".");
  entries.push_back(std::move(entry));
}

void read_entries(torch::nn::Module& module, const std::string& path, torch::serialize::InputArchive& archive,
                  std::vector<Entry>& entries) {
  for (auto& item : module.named_parameters(false)) read_entry(path, item.key(), item.value(), false, archive, entries);
  for (auto& item : module.named_buffers(false)) read_entry(path, item.key(), item.value(), true, archive, entries);
  for (auto& item : module.named_children()) {
    if (!item.value()->is_serializable()) continue;
    torch::serialize::InputArchive child;
    TORCH_CHECK(archive.try_read(item.key(), child), "The checkpoint has no module '", path, item.key(),
                "'. It was saved from another model.");
    read_entries(*item.value(), path + item.key() + ".", child, entries);
  }
}

}  // namespace

void save_float32(const torch::nn::Module& module, torch::serialize::OutputArchive& archive) {
  for (const auto& item : module.named_parameters(false)) archive.write(item.key(), widened(item.value()));
  for (const auto& item : module.named_buffers(false)) archive.write(item.key(), widened(item.value()), /*is_buffer=*/true);
  for (const auto& item : module.named_children()) {
    if (!item.value()->is_serializable()) continue;
    torch::serialize::OutputArchive child(archive.compilation_unit());
    save_float32(*item.value(), child);
    archive.write(item.key(), child);
  }
}

void load_any_dtype(torch::nn::Module& module, torch::serialize::InputArchive& archive, const Session& session) {
  std::vector<Entry> entries;
  read_entries(module, "", archive, entries);
  for (const auto& entry : entries) {
    give_each_element_memory(entry.target);
    assign(entry.target, entry.value, &session);
  }
  forget_overwritten_masters(session);
}

}  // namespace apex::amp::detail
