#include <apex_cpp/amp/training_state/python_class.h>
#include <apex_cpp/amp/training_state/python_optimizer.h>

#include <c10/util/Exception.h>

#include <optional>
#include <utility>

namespace apex::amp::detail {
namespace {

constexpr const char* kOtherParams = ". Give the optimizer the same parameters in the same groups and order as in Python.";

/// One conversion: checks the file against the optimizer here, and fills `content`.
class FromPython {
 public:
  FromPython(const PythonOptimizer& python, const std::map<std::string, at::Tensor>& weights, OptimizerContent here)
      : python_(python),
        weights_(weights),
        content_(std::move(here)),
        own_(own_class_of(content_.class_name)),
        class_(find_python_class(python_class_of(own_, content_.archive, content_.groups.size()))) {}

  OptimizerContent convert() {
    check_class();
    take_params();
    check_groups();
    for (size_t i = 0; i < python_.groups.size(); ++i) take_options(i);
    take_states();
    if (own_.steps == OwnClass::Steps::by_group) take_group_steps();
    return std::move(content_);
  }

 private:
  void check_class() const {
    TORCH_CHECK(python_.class_name == class_->name, "it holds the state of a torch.optim.", python_.class_name,
                ". The class here, ", own_.name, ", continues torch.optim.", class_->name,
                own_.has_adam_w_mode ? " with this adam_w_mode" : "",
                ". Load it into an optimizer that continues the file's class.");
  }

  void take_params() {
    TORCH_CHECK(python_.params.size() == content_.params.size(), "its optimizer has ", python_.params.size(),
                " parameters, this one has ", content_.params.size(), kOtherParams);
    for (size_t i = 0; i < content_.params.size(); ++i) {
      auto& param = content_.params[i];
      TORCH_CHECK(full_name(0, python_.params[i]) == param.name, "the optimizer's parameter ", i, " is '", python_.params[i],
                  "' in the file and '", param.name.substr(param.name.find('/') + 1), "' here", kOtherParams);
      const auto weight = weights_.find(python_.params[i]);
      TORCH_CHECK(weight != weights_.end(), "the value of the optimizer's parameter ", i, ", '", python_.params[i],
                  "', is missing. Write the file again.");
      // A frozen parameter has no state, and gets no master.
      if (param.master.defined() || python_.states.count(static_cast<int64_t>(i))) param.master = weight->second;
    }
  }

  void check_groups() const {
    TORCH_CHECK(python_.groups.size() == content_.groups.size(), "its optimizer has ", python_.groups.size(),
                " parameter groups, this one has ", content_.groups.size(), kOtherParams);
    for (size_t i = 0; i < content_.groups.size(); ++i) {
      const auto here = once_each(content_.groups[i]);
      TORCH_CHECK(python_.groups[i].params == here, "its parameter group ", i, " has the parameters ",
                  at::IntArrayRef(python_.groups[i].params), ", this optimizer's has ", at::IntArrayRef(here), kOtherParams);
    }
  }

  ArchiveTree& options_here(size_t group) { return const_cast<ArchiveTree&>(options_of_group(content_.archive, group)); }

  void take_options(size_t group) {
    auto& options = options_here(group).values;
    check_fixed_options(own_, options_here(group), group);
    for (const auto& [name, value] : python_.groups[group].options) {
      const PythonOption& option = *class_->find_option(name);
      const auto own = options.find(name);
      TORCH_CHECK(computes(option, value, own != options.end()), "its parameter group ", group, " has ", name, " ", value,
                  ", which ", own_.name, " does not compute. Set it ", option.neutral, " in Python.");
      if (own != options.end()) own->second = value;
    }
  }

  // Whether the optimizer here, which has the option or not, computes what Python computes with this value.
  bool computes(const PythonOption& option, const c10::IValue& value, bool has_option) const {
    for (const auto& [name, only] : own_.fixed) {
      if (std::string(name) == option.name) return value.toBool() == only;
    }
    return has_option || option.any_is_neutral || value == option.neutral;
  }

  void take_states() {
    ArchiveTree& states = content_.archive.children["state"];
    states.children.clear();
    for (size_t i = 0; i < python_.groups.size(); ++i) {
      for (const int64_t position : python_.groups[i].params) {
        const auto state = python_.states.find(position);
        if (state != python_.states.end()) {
          check_state(position, state->second, python_.groups[i]);
          states.children.emplace(std::to_string(position), archived(position, state->second, i));
        } else {
          TORCH_CHECK(!class_->has_state_from_start, "the state of parameter ", position, ", '", python_.params[position],
                      "', is missing, which torch.optim.", class_->name, " has from the start. Write the file again.");
        }
      }
    }
  }

  void check_state(int64_t position, const PythonOptimizer::State& state, const PythonOptimizer::Group& group) const {
    const auto& param = content_.params[position];
    const auto dtype = param.dtype == "Double" ? at::kDouble : at::kFloat;
    for (const auto& needed : class_->tensors) {
      const bool may_be_missing = needed.may_be_missing || !is_on(group, needed.needed_with);
      TORCH_CHECK(may_be_missing || state.tensors.count(needed.name), "the state of parameter ", position, ", '",
                  python_.params[position], "', has no '", needed.name, "'. Write the file again.");
    }
    for (const auto& [name, tensor] : state.tensors) {
      const bool fits = tensor.sizes() == param.sizes && (tensor.scalar_type() == dtype || tensor.scalar_type() == at::kFloat);
      TORCH_CHECK(fits, "'", name, "' of parameter ", position, ", '", python_.params[position], "', is ", tensor.scalar_type(),
                  tensor.sizes(), " in the file, expected ", dtype, at::IntArrayRef(param.sizes),
                  ". Write the file again, from a model that is built like this one.");
    }
  }

  // The value of an option: on if it is true or not 0. The name "" is always on.
  static bool is_on(const PythonOptimizer::Group& group, const std::string& option) {
    if (option.empty()) return true;
    const c10::IValue& value = group.options.at(option);
    return value.isBool() ? value.toBool() : value.toDouble() != 0;
  }

  ArchiveTree archived(int64_t position, const PythonOptimizer::State& state, size_t group) {
    ArchiveTree tree;
    for (const auto& [name, tensor] : state.tensors) tree.values.emplace(name, tensor);
    if (own_.steps == OwnClass::Steps::in_states) tree.values.emplace("step", *state.step);
    // FusedAdam without amp keeps masters in its states.
    const auto& options = options_here(group).values;
    const auto own_masters = options.find("master_weights");
    if (own_masters != options.end() && own_masters->second.toBool()) {
      tree.values.emplace("master_param", std::exchange(content_.params[position].master, {}));
    }
    return tree;
  }

  // A fused optimizer counts the steps of a group, Python those of each parameter.
  void take_group_steps() {
    ArchiveTree counts;
    counts.values.emplace("size", static_cast<int64_t>(python_.groups.size()));
    for (size_t i = 0; i < python_.groups.size(); ++i) {
      counts.children[std::to_string(i)].values.emplace("step", step_of_group(python_.groups[i]));
    }
    content_.archive.children["group_states"] = std::move(counts);
  }

  int64_t step_of_group(const PythonOptimizer::Group& group) const {
    std::optional<int64_t> first;
    int64_t first_position = 0;
    for (const int64_t position : group.params) {
      const auto state = python_.states.find(position);
      if (state == python_.states.end()) continue;
      if (!first) first_position = position;
      if (!first) first = state->second.step;
      TORCH_CHECK(first == state->second.step, "parameter ", position, ", '", python_.params[position], "', has taken ",
                  *state->second.step, " steps and parameter ", first_position, ", '", python_.params[first_position], "', ",
                  *first, "; ", own_.name,
                  " counts the steps of a whole group. Load it into the torch::optim class, or into an optimizer "
                  "with a group for each count.");
    }
    return first.value_or(0);
  }

  const PythonOptimizer& python_;
  const std::map<std::string, at::Tensor>& weights_;
  OptimizerContent content_;
  const OwnClass& own_;
  const PythonClass* class_;
};

}  // namespace

OptimizerContent from_python(const PythonOptimizer& python, const std::map<std::string, at::Tensor>& weights,
                             OptimizerContent here) {
  return FromPython(python, weights, std::move(here)).convert();
}

}  // namespace apex::amp::detail
