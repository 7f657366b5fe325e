#include <apex_cpp/amp/checkpoint/archive_tensors.h>

#include <torch/serialize/archive.h>

#include <sstream>

namespace apex::amp::detail {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

ArchiveTree read_all(InputArchive& archive) {
  ArchiveTree tree;
  for (const auto& key : archive.keys()) {
    InputArchive nested;
    if (archive.try_read(key, nested)) {
      tree.children.emplace(key, read_all(nested));
    } else {
      archive.read(key, tree.values[key]);
    }
  }
  return tree;
}

void write_all(const ArchiveTree& tree, OutputArchive& archive) {
  for (const auto& [key, value] : tree.values) archive.write(key, value);
  for (const auto& [key, child] : tree.children) {
    OutputArchive nested(archive.compilation_unit());
    write_all(child, nested);
    archive.write(key, nested);
  }
}

ArchiveTree* child_of(ArchiveTree& tree, const std::string& key) {
  const auto found = tree.children.find(key);
  return found == tree.children.end() ? nullptr : &found->second;
}

// Replaces the addresses in one group, in order.
void number_params(ArchiveTree& group, std::map<std::string, std::string>& positions) {
  for (size_t i = 0;; ++i) {
    const auto param = group.values.find("params/" + std::to_string(i));
    if (param == group.values.end()) return;
    const auto position = std::to_string(positions.size());
    param->second = positions.try_emplace(param->second.toStringRef(), position).first->second;
  }
}

}  // namespace

ArchiveTree tree_of(const std::function<void(OutputArchive&)>& save) {
  std::ostringstream bytes;
  {
    OutputArchive archive;
    save(archive);
    archive.save_to(bytes);
  }
  std::istringstream stream(bytes.str());
  InputArchive archive;
  archive.load_from(stream, at::kCPU);
  return read_all(archive);
}

void load_tree(const ArchiveTree& tree, const std::function<void(InputArchive&)>& load) {
  std::stringstream stream;
  {
    OutputArchive archive;
    write_all(tree, archive);
    archive.save_to(stream);
  }
  InputArchive archive;
  archive.load_from(stream);
  load(archive);
}

void name_params_by_position(ArchiveTree& optimizer) {
  ArchiveTree* groups = child_of(optimizer, "param_groups");
  ArchiveTree* state = child_of(optimizer, "state");
  if (!groups || !state) return;
  std::map<std::string, std::string> positions;
  for (size_t i = 0;; ++i) {
    ArchiveTree* group = child_of(*groups, "param_groups/" + std::to_string(i));
    if (!group) break;
    number_params(*group, positions);
  }
  ArchiveTree by_position;
  for (auto& [address, of_param] : state->children) {
    const auto position = positions.find(address);
    if (position != positions.end()) by_position.children.emplace(position->second, std::move(of_param));
  }
  *state = std::move(by_position);
}

}  // namespace apex::amp::detail
