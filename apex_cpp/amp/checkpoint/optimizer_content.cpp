#include <apex_cpp/amp/checkpoint/optimizer_content.h>

#include <ATen/ops/empty_like.h>
#include <c10/util/Type.h>
#include <torch/serialize/archive.h>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/map_tensors.h>

#include <limits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace apex::amp::detail {
namespace {

using torch::optim::Optimizer;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr const char* kOwnMasterKey = "master_param";
constexpr const char* kRemainderKey = "remainder";
constexpr const char* kLoadedRemaindersKey = "loaded_remainders";

// The program's class, not that of amp's handle; for a sharded optimizer the class that saves the same layout.
std::string class_name_of(const Optimizer& optimizer) {
  if (const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer)) return sharded->saved_as();
  std::string name = c10::demangle(typeid(optimizer).name());
  const std::string handle = "apex::amp::AmpOptimizer<";
  if (name.rfind(handle, 0) == 0) name = name.substr(handle.size(), name.rfind('>') - handle.size());
  return name.substr(0, name.find_last_not_of(' ') + 1);
}

at::Tensor as_float32(const at::Tensor& tensor) { return tensor.detach().to(at::kFloat); }

ArchiveTree state_without_masters(const Optimizer& optimizer) {
  const SaveWithoutMasters guard(optimizer);
  return saved_state_of(optimizer);
}

// torch::optim::Optimizer::save, which a class of the program may inherit, saves nothing.
void check_saves_state(const Optimizer& optimizer, const ArchiveTree& saved) {
  const bool saves_nothing = saved.values.empty() && saved.children.empty();
  TORCH_CHECK(!saves_nothing || optimizer.state().empty(), "amp::save_checkpoint was given an optimizer of the class ",
              class_name_of(optimizer), " with state for ", optimizer.state().size(),
              " parameters, but its `save` does not write this state. Override `save` and `load` in that class, each with "
              "torch::optim::serialize<State, Options>(archive, *this): the classes of its state and of its options.");
}

ArchiveTree archive_of(const Optimizer& optimizer) {
  auto tree = state_without_masters(optimizer);
  check_saves_state(optimizer, tree);
  name_params_by_position(tree);
  return tree;
}

// A sharded optimizer keeps its masters in its state, beside the moments in the layout of the class that it saves as.
void take_masters(ArchiveTree& archive, std::vector<OptimizerParam>& params) {
  ArchiveTree* states = child_of(archive, "state");
  if (!states) return;
  for (auto state = states->children.begin(); state != states->children.end();) {
    auto& values = state->second.values;
    const auto master = values.find(kOwnMasterKey);
    if (master != values.end()) {
      params.at(std::stoul(state->first)).master = master->second.toTensor();
      values.erase(master);
    }
    state = values.empty() ? states->children.erase(state) : std::next(state);
  }
}

// An optimizer that keeps masters as remainders: the file has the masters, which fit any storage.
void drop_remainders(ArchiveTree& archive) {
  archive.children.erase(kLoadedRemaindersKey);
  ArchiveTree* states = child_of(archive, "state");
  if (!states) return;
  for (auto& state : states->children) state.second.values.erase(kRemainderKey);
}

// ---- checks ----

// Describes the first difference between two archives; empty if there is none. The value none matches any type.
std::string difference(const ArchiveTree& here, const ArchiveTree& there, const std::string& path) {
  for (const auto& [key, value] : here.values) {
    const auto found = there.values.find(key);
    if (found == there.values.end()) return "has no '" + path + key + "'";
    const bool alike = value.isNone() || found->second.isNone() || value.tagKind() == found->second.tagKind();
    if (!alike) return "has " + found->second.tagKind() + " for '" + path + key + "', not " + value.tagKind();
  }
  for (const auto& [key, child] : here.children) {
    const ArchiveTree* found = child_of(there, key);
    if (!found) return "has no '" + path + key + "'";
    const auto inside = difference(child, *found, path + key + "/");
    if (!inside.empty()) return inside;
  }
  return "";
}

// LARC has the states of what it wraps.
std::string without_larc(const std::string& class_name) {
  const std::string larc = "apex::parallel::LARC<";
  return class_name.rfind(larc, 0) == 0 ? without_larc(class_name.substr(larc.size())) : class_name;
}

bool is_fused_class(const std::string& class_name) { return without_larc(class_name).rfind("apex::optimizers::", 0) == 0; }

// Whether a class has states of tensors that are shaped like their parameters, and of counters. A class of the program may
// have any, such as sums over rows.
bool has_param_shaped_states(const std::string& class_name) {
  const std::string name = without_larc(class_name);
  return is_fused_class(name) || (name.rfind("torch::optim::", 0) == 0 && name.rfind("torch::optim::LBFGS", 0) != 0);
}

void check_state_shapes(const ArchiveTree& states, const OptimizerContent& content) {
  for (const auto& [position, state] : states.children) {
    const auto& param = content.params.at(std::stoul(position));
    for (const auto& [key, value] : state.values) {
      if (!value.isTensor()) continue;
      TORCH_CHECK(value.toTensor().sizes() == param.sizes, "the state '", key, "' of the parameter '", param.name,
                  "' has shape ", value.toTensor().sizes(), ", expected ", at::IntArrayRef(param.sizes), ".");
    }
  }
}

void check_states(const OptimizerContent& content) {
  const ArchiveTree* states = child_of(content.archive, "state");
  if (!states) return;
  for (const auto& item : states->children) {
    const bool number = !item.first.empty() && item.first.find_first_not_of("0123456789") == std::string::npos;
    TORCH_CHECK(number && item.first.size() < 10 && std::stoul(item.first) < content.params.size(),
                "it has state of the parameter '", item.first, "', which the file does not list.");
  }
  if (has_param_shaped_states(content.class_name)) check_state_shapes(*states, content);
}

// ---- placing states ----

// Moves a state to the parameter's device and, if it has the parameter's shape, to its layout, as kernels require.
at::Tensor placed_like(const at::Tensor& param, const at::Tensor& state) {
  if (!state.defined()) return state;
  const at::Tensor here = state.to(param.device());
  return here.sizes() == param.sizes() ? in_layout_of(here, param) : here;
}

ArchiveTree placed_like(const OptimizerParams& params, ArchiveTree archive) {
  ArchiveTree* states = child_of(archive, "state");
  if (!states) return archive;
  for (auto& [position, state] : states->children) {
    const at::Tensor param = params.params.at(std::stoul(position)).stepped.detach();
    for (auto& item : state.values) {
      item.second = map_ivalue(item.second, [&](const at::Tensor& tensor) { return placed_like(param, tensor); });
    }
  }
  return archive;
}

// torch's optimizers may list a tied parameter several times. They read its state for each, but only the first read succeeds:
// the others get an index without state.
ArchiveTree asking_once(ArchiveTree archive) {
  ArchiveTree* groups = child_of(archive, "param_groups");
  if (!groups) return archive;
  std::unordered_set<std::string> asked;
  for (auto& [index, group] : groups->children) {
    for (auto& [key, value] : group.values) {
      if (!value.isString() || asked.insert(value.toStringRef()).second) continue;
      value = std::to_string(std::numeric_limits<size_t>::max());
    }
  }
  return archive;
}

}  // namespace

// ---- parameters ----

OptimizerParams::OptimizerParams(const Optimizer& optimizer, const OptimizerStash* stash) {
  std::unordered_map<const at::TensorImpl*, at::Tensor> behind_master;
  if (stash) {
    const auto masters = stash->masters(), model_params = stash->model_params();
    for (size_t i = 0; i < masters.size(); ++i) behind_master.emplace(masters[i].unsafeGetTensorImpl(), model_params[i]);
  }
  std::unordered_map<const at::TensorImpl*, int64_t> positions;
  for (const auto& group : optimizer.param_groups()) {
    groups.emplace_back();
    for (const auto& param : group.params()) {
      const auto next = static_cast<int64_t>(params.size());
      const auto [position, is_new] = positions.try_emplace(param.unsafeGetTensorImpl(), next);
      groups.back().push_back(position->second);
      if (!is_new) continue;
      const auto model = behind_master.find(param.unsafeGetTensorImpl());
      params.push_back({param, model == behind_master.end() ? param : model->second});
    }
  }
}

std::string ParamNames::find(const at::Tensor& param) const {
  const auto found = names_.find(param.unsafeGetTensorImpl());
  return found == names_.end() ? "" : found->second;
}

ArchiveTree saved_state_of(const Optimizer& optimizer) {
  return tree_of([&](OutputArchive& archive) { save_without_scratch(optimizer, [&] { optimizer.save(archive); }); });
}

OptimizerContent content_of(const Optimizer& optimizer, const OptimizerStash* stash, const ParamNames& names) {
  OptimizerContent content;
  content.class_name = class_name_of(optimizer);
  const OptimizerParams params(optimizer, stash);
  const auto* fused = dynamic_cast<const StepsMasters*>(&optimizer);
  content.groups = params.groups;
  for (const auto& param : params.params) {
    OptimizerParam saved{names.find(param.model), c10::toString(param.model.scalar_type()), param.model.sizes().vec(), {}, {}};
    if (param.has_master()) {
      saved.master = param.stepped.detach();
    } else if (fused) {
      saved.master = fused->kept_master_of(param.model);
    }
    if (saved.name.empty()) saved.value = as_float32(param.model);
    content.params.push_back(std::move(saved));
  }
  content.archive = archive_of(optimizer);
  if (dynamic_cast<const ShardedOptimizer*>(&optimizer)) take_masters(content.archive, content.params);
  if (fused) drop_remainders(content.archive);
  return content;
}

at::Tensor own_master_in(const OptimizerContent& content, size_t position, bool is_fused) {
  const ArchiveTree* states = child_of(content.archive, "state");
  const ArchiveTree* state = states ? child_of(*states, std::to_string(position)) : nullptr;
  if (!state || !(is_fused || is_fused_class(content.class_name))) return {};
  const auto master = state->values.find(kOwnMasterKey);
  return master != state->values.end() && master->second.isTensor() ? master->second.toTensor() : at::Tensor();
}

// ---- loading ----

OptimizerLoad::OptimizerLoad(Optimizer& optimizer, const OptimizerStash* stash) : optimizer_(optimizer), stash_(stash) {
  // Saves neither the states, which are kept without a copy, nor the masters, which `apply` leaves alone.
  States states;
  std::swap(states, optimizer_.state());
  try {
    before_ = state_without_masters(optimizer_);
  } catch (...) {
    std::swap(states, optimizer_.state());
    throw;
  }
  std::swap(states, optimizer_.state());
}

void OptimizerLoad::check_fits(const ParamNames& names, const OptimizerContent& content) const {
  const auto class_name = class_name_of(optimizer_);
  TORCH_CHECK(content.class_name == class_name, "it was saved from an optimizer of the class ", content.class_name,
              ", this one is a ", class_name, ", which cannot use this state. Load it into a ", content.class_name,
              ", or load the model alone.");
  const OptimizerParams here(optimizer_, stash_);
  TORCH_CHECK(content.groups.size() == here.groups.size(), "its optimizer has ", content.groups.size(),
              " parameter groups, this one has ", here.groups.size(), ". Add the same groups before loading.");
  for (size_t i = 0; i < here.groups.size(); ++i) {
    TORCH_CHECK(content.groups[i].size() == here.groups[i].size(), "its parameter group ", i, " has ", content.groups[i].size(),
                " parameters, this optimizer's has ", here.groups[i].size(), ".");
    TORCH_CHECK(content.groups[i] == here.groups[i], "other parameters appear twice in its parameter group ", i, ".");
  }
  TORCH_CHECK(content.params.size() == here.params.size(), "its optimizer has ", content.params.size(),
              " parameters, this one has ", here.params.size(), ".");
  for (size_t i = 0; i < here.params.size(); ++i) {
    const auto& saved = content.params[i];
    const auto name = names.find(here.params[i].model);
    TORCH_CHECK(saved.name == name, "the optimizer's parameter ", i, " is '", saved.name, "' in the file and '", name,
                "' here (no name: a parameter of no model). Give the optimizer the parameters in the same order.");
    TORCH_CHECK(here.params[i].model.sizes() == saved.sizes, "the optimizer's parameter ", i, ", '", name, "', has shape ",
                at::IntArrayRef(saved.sizes), " in the file and ", here.params[i].model.sizes(), " here.");
    TORCH_CHECK(!name.empty() || saved.value.defined(), "the value of the optimizer's parameter ", i, " is missing.");
  }
  const ArchiveTree* groups = child_of(before_, "param_groups");
  if (!groups) return;
  const ArchiveTree* saved_groups = child_of(content.archive, "param_groups");
  const auto options = saved_groups ? difference(*groups, *saved_groups, "") : "has no 'param_groups'";
  TORCH_CHECK(options.empty(), "its optimizer ", options, ": it was saved by another version of ", class_name, ".");
  check_states(content);
}

void OptimizerLoad::apply(const OptimizerContent& content) {
  // A sharded optimizer reads its parts from the CPU, because no device has the memory for the whole state.
  const bool sharded = dynamic_cast<ShardedOptimizer*>(&optimizer_);
  const auto archive =
      asking_once(sharded ? content.archive : placed_like(OptimizerParams(optimizer_, stash_), content.archive));
  begun_ = true;
  std::swap(states_before_, optimizer_.state());
  load_tree(archive, [&](InputArchive& in) { optimizer_.load(in); });
  match_state_to_params(optimizer_, stash_ && stash_->session().has_masters());
}

void OptimizerLoad::undo() {
  if (!begun_) return;
  load_tree(before_, [&](InputArchive& archive) { optimizer_.load(archive); });
  optimizer_.state() = std::move(states_before_);
  begun_ = false;
}

}  // namespace apex::amp::detail
