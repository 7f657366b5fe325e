#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/training_state/python_class.h>
#include <apex_cpp/amp/training_state/python_optimizer.h>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <unordered_set>
#include <utility>

namespace apex::amp::detail {

const ArchiveTree& options_of_group(const ArchiveTree& archive, size_t group) {
  const ArchiveTree* tree = child_of(archive, "param_groups");
  if (tree) tree = child_of(*tree, "param_groups/" + std::to_string(group));
  if (tree) tree = child_of(*tree, "options");
  TORCH_INTERNAL_ASSERT(tree);
  return *tree;
}

void check_fixed_options(const OwnClass& own, const ArchiveTree& options, size_t group) {
  for (const auto& [name, wanted] : own.fixed) {
    TORCH_CHECK(options.values.at(name).toBool() == wanted, "parameter group ", group, " of ", own.name, " has ", name,
                wanted ? " false" : " true", ", which torch.optim.", own.python, " does not compute. Set it ",
                wanted ? "true." : "false.");
  }
}

std::string python_class_of(const OwnClass& own, const ArchiveTree& archive, size_t groups) {
  if (!own.has_adam_w_mode || groups == 0) return own.python;
  const auto is_adam_w = [&](size_t i) { return options_of_group(archive, i).values.at("adam_w_mode").toBool(); };
  for (size_t i = 1; i < groups; ++i) {
    TORCH_CHECK(is_adam_w(i) == is_adam_w(0), "parameter groups 0 and ", i,
                " differ in adam_w_mode: Python has two classes for them. Give all groups the same.");
  }
  return is_adam_w(0) ? "AdamW" : own.python;
}

std::vector<int64_t> once_each(const std::vector<int64_t>& positions) {
  std::vector<int64_t> once;
  std::unordered_set<int64_t> seen;
  for (const int64_t position : positions) {
    if (seen.insert(position).second) once.push_back(position);
  }
  return once;
}

namespace {

/// Makes the states of Python from those in an optimizer's archive.
class StatesForPython {
 public:
  StatesForPython(const OptimizerContent& content, const OwnClass& own, const PythonClass& python)
      : content_(content), own_(own), python_(python) {}

  void add_group(size_t group, const PythonOptimizer::Group& in_python, PythonOptimizer& to) const {
    for (const int64_t position : in_python.params) {
      const ArchiveTree* state = state_of_param(position);
      if (!state && !python_.has_state_from_start) continue;
      auto in_file = state_from(state, position);
      if (python_.counts_steps) in_file.step = step_of(state, group);
      to.states.emplace(position, std::move(in_file));
    }
  }

 private:
  const ArchiveTree* state_of_param(int64_t position) const {
    const ArchiveTree* states = child_of(content_.archive, "state");
    return states ? child_of(*states, std::to_string(position)) : nullptr;
  }

  PythonOptimizer::State state_from(const ArchiveTree* state, int64_t position) const {
    PythonOptimizer::State in_file;
    for (const auto& tensor : python_.tensors) {
      const at::Tensor value = state ? tensor_in(*state, tensor.name) : at::zeros(content_.params[position].sizes);
      if (value.defined()) in_file.tensors.emplace(tensor.name, widened(value).detach());
    }
    return in_file;
  }

  static at::Tensor tensor_in(const ArchiveTree& state, const char* name) {
    const auto found = state.values.find(name);
    return found != state.values.end() && found->second.isTensor() ? found->second.toTensor() : at::Tensor();
  }

  int64_t step_of(const ArchiveTree* state, size_t group) const {
    if (own_.steps == OwnClass::Steps::in_states) return state ? state->values.at("step").toInt() : 0;
    if (own_.steps == OwnClass::Steps::none) return 0;
    const ArchiveTree* groups = child_of(content_.archive, "group_states");
    const ArchiveTree* of_group = groups ? child_of(*groups, std::to_string(group)) : nullptr;
    return of_group ? of_group->values.at("step").toInt() : 0;
  }

  const OptimizerContent& content_;
  const OwnClass& own_;
  const PythonClass& python_;
};

std::map<std::string, c10::IValue> python_options(const PythonClass& python, const ArchiveTree& options) {
  std::map<std::string, c10::IValue> in_python;
  for (const auto& option : python.options) {
    const auto own = options.values.find(option.name);
    in_python.emplace(option.name, own == options.values.end() ? option.neutral : own->second);
  }
  return in_python;
}

// "fc.weight" for "model0/fc.weight".
std::string name_in_model(const std::string& full_name, size_t position) {
  TORCH_CHECK(!full_name.empty(), "parameter ", position,
              " of the optimizer is not in the model, and a training state holds the model's. Register it in the model.");
  return full_name.substr(full_name.find('/') + 1);
}

}  // namespace

PythonOptimizer to_python(const OptimizerContent& content) {
  const OwnClass& own = own_class_of(content.class_name);
  PythonOptimizer result;
  result.class_name = python_class_of(own, content.archive, content.groups.size());
  const PythonClass& python = *find_python_class(result.class_name);
  for (size_t i = 0; i < content.params.size(); ++i) result.params.push_back(name_in_model(content.params[i].name, i));
  const StatesForPython states(content, own, python);
  for (size_t i = 0; i < content.groups.size(); ++i) {
    const ArchiveTree& options = options_of_group(content.archive, i);
    check_fixed_options(own, options, i);
    result.groups.push_back({python_options(python, options), once_each(content.groups[i])});
    states.add_group(i, result.groups.back(), result);
  }
  return result;
}

}  // namespace apex::amp::detail
