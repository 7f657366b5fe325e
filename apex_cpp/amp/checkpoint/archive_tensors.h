#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <map>
#include <string>

namespace torch::serialize {
class OutputArchive;
class InputArchive;
}  // namespace torch::serialize

namespace apex::amp::detail {

/// What a torch archive holds, by key: values, and the archives nested in it.
struct ArchiveTree {
  std::map<std::string, c10::IValue> values;
  std::map<std::string, ArchiveTree> children;
};

/// The archive of that name in `tree`; null where there is none.
ArchiveTree* child_of(ArchiveTree& tree, const std::string& key);
const ArchiveTree* child_of(const ArchiveTree& tree, const std::string& key);

/// What `save` writes, read back on the CPU. Takes memory for the tensors twice while it runs: for the archive's bytes, and for
/// the copies that are answered.
ArchiveTree tree_of(const std::function<void(torch::serialize::OutputArchive&)>& save);

/// Hands `load` an archive that holds `tree`. Its tensors share memory with the tree's, on their devices: no element is copied.
void load_tree(const ArchiveTree& tree, const std::function<void(torch::serialize::InputArchive&)>& load);

/// torch::optim archives name parameters by their addresses. Replaces each by the parameter's position, counted over all groups
/// and once for a parameter that stands there twice, so that the same state is always written alike. State of a parameter that
/// is in no group is dropped, as torch drops it when it loads. An archive of another layout stays as it is.
void name_params_by_position(ArchiveTree& optimizer);

}  // namespace apex::amp::detail
