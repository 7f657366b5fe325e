#include <apex_cpp/amp/training_state/training_file.h>

#include <apex_cpp/amp/training_state/python_class.h>
#include <apex_cpp/amp/training_state/training_file_json.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <utility>

namespace apex::amp::detail {
namespace {

using nlohmann::json;

constexpr const char* kStateKey = "training_state";
constexpr int64_t kStateVersion = 1;
const std::string kModelPrefix = "model/";
const std::string kStatePrefix = "optimizer/state/";

// ---- to the file ----

double finite(double number, const std::string& name) {
  TORCH_CHECK_VALUE(std::isfinite(number), "amp::save_for_python: ", name, " is ", number,
                    ". Set it to a finite number first.");
  return number;
}

json option_to_json(const std::string& name, const c10::IValue& value) {
  if (value.isBool()) return value.toBool();
  if (value.isDouble()) return finite(value.toDouble(), name);
  const auto& betas = value.toTupleRef().elements();
  return {finite(betas[0].toDouble(), name), finite(betas[1].toDouble(), name)};
}

json group_to_json(const PythonOptimizer::Group& group) {
  json object = {{"params", group.params}};
  for (const auto& [name, value] : group.options) object[name] = option_to_json(name, value);
  return object;
}

json states_to_json(const std::map<int64_t, PythonOptimizer::State>& states, TensorFile& file) {
  json steps = json::object();
  for (const auto& [position, state] : states) {
    const auto number = std::to_string(position);
    if (state.step) steps[number] = {{"step", *state.step}};
    for (const auto& [name, tensor] : state.tensors) file.tensors.emplace_back(kStatePrefix + number + "/" + name, tensor);
  }
  return steps;
}

json scaler_to_json(const PythonScaler& scaler) {
  return {{"scale", finite(scaler.scale, "the loss scale")},
          {"growth_factor", finite(scaler.growth_factor, "the growth factor")},
          {"backoff_factor", finite(scaler.backoff_factor, "the backoff factor")},
          {"growth_interval", scaler.growth_interval},
          {"_growth_tracker", scaler.growth_tracker}};
}

// ---- from the file ----

PythonScaler scaler_from(const StateValue& value) {
  value.check_keys({"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"});
  PythonScaler scaler{value.member("scale").number(), value.member("growth_factor").number(),
                      value.member("backoff_factor").number(), value.member("growth_interval").count(1),
                      value.member("_growth_tracker").count()};
  if (scaler.scale <= 0 || !std::isnormal(static_cast<float>(scaler.scale)))
    value.member("scale").refuse("a number above 0 that float32 holds");
  if (scaler.growth_factor <= 1) value.member("growth_factor").refuse("a number above 1");
  if (scaler.backoff_factor <= 0 || scaler.backoff_factor >= 1)
    value.member("backoff_factor").refuse("a number between 0 and 1");
  if (scaler.growth_tracker > std::numeric_limits<int32_t>::max())
    value.member("_growth_tracker").refuse("a whole number below 2147483648");
  return scaler;
}

double number_option(const PythonOption& option, const StateValue& value) {
  const double number = value.number();
  if (number < 0 && !option.may_be_negative) value.refuse("a number of at least 0");
  return number;
}

double beta_from(const StateValue& value) {
  const double beta = value.number();
  if (beta < 0 || beta >= 1) value.refuse("a number of at least 0 and below 1");
  return beta;
}

c10::IValue option_from(const PythonOption& option, const StateValue& value) {
  if (option.type == PythonOption::Type::flag) return value.flag();
  if (option.type == PythonOption::Type::number) return number_option(option, value);
  if (value.size() != 2) value.refuse("two numbers");
  return std::make_tuple(beta_from(value.element(0)), beta_from(value.element(1)));
}

void check_known_options(const PythonClass& python, const StateValue& group) {
  for (const auto& item : group.json().items()) {
    TORCH_CHECK(item.key() == "params" || python.find_option(item.key()), "its '", group.path(), "' has the unknown entry '",
                item.key().substr(0, 80), "'. The options of torch.optim.", python.name, " are ", python.names_of_options(),
                ": write the file again.");
  }
}

PythonOptimizer::Group group_from(const PythonClass& python, const StateValue& value, size_t params) {
  PythonOptimizer::Group group;
  const auto positions = value.member("params");
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto position = positions.element(i);
    group.params.push_back(position.count());
    if (group.params.back() >= static_cast<int64_t>(params)) position.refuse("a number below " + std::to_string(params));
  }
  for (const auto& option : python.options) group.options.emplace(option.name, option_from(option, value.member(option.name)));
  check_known_options(python, value);
  return group;
}

// The position in a name of a state; c10::Error unless it is the number of a parameter.
int64_t position_from(const std::string& text, size_t params) {
  const bool is_number = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
  TORCH_CHECK(is_number && std::stoul(text) < params, "it has a state of the parameter '", text.substr(0, 80), "', and only ",
              params, " parameters. Write the file again.");
  return static_cast<int64_t>(std::stoul(text));
}

void take_state_tensor(const std::string& name, const at::Tensor& tensor, const PythonClass& python,
                       PythonOptimizer& optimizer) {
  const auto slash = name.find('/', kStatePrefix.size());
  const auto position = position_from(name.substr(kStatePrefix.size(), slash - kStatePrefix.size()), optimizer.params.size());
  const auto key = slash == std::string::npos ? std::string() : name.substr(slash + 1);
  TORCH_CHECK(python.find_tensor(key), "its tensor '", name.substr(0, 200), "' is no state of torch.optim.", python.name,
              ", which has ", python.names_of_tensors(), ". Write the file again.");
  optimizer.states[position].tensors.emplace(key, tensor);
}

void take_tensors(const TensorFile& file, const PythonClass& python, TrainingState& state) {
  for (const auto& [name, tensor] : file.tensors) {
    if (name.compare(0, kModelPrefix.size(), kModelPrefix) == 0) {
      state.weights.emplace(name.substr(kModelPrefix.size()), tensor);
    } else if (name.compare(0, kStatePrefix.size(), kStatePrefix) == 0) {
      take_state_tensor(name, tensor, python, state.optimizer);
    } else {
      C10_THROW_ERROR(Error, "its tensor '" + name.substr(0, 200) +
                                 "' belongs neither to a model nor to an optimizer. Write the file again.");
    }
  }
}

void take_steps(const StateValue& steps, const PythonClass& python, PythonOptimizer& optimizer) {
  if (!steps.json().is_object()) steps.refuse("an object");
  for (const auto& item : steps.json().items()) {
    const StateValue value(item.value(), steps.path() + "/" + item.key());
    if (!python.counts_steps) value.refuse(std::string("nothing: torch.optim.") + python.name + " counts no steps");
    value.check_keys({"step"});
    optimizer.states[position_from(item.key(), optimizer.params.size())].step = value.member("step").count();
  }
  if (!python.counts_steps) return;
  for (const auto& [position, state] : optimizer.states) {
    TORCH_CHECK(state.step, "it has no '", steps.path(), "/", position, "/step'. Write the file again.");
  }
}

const PythonClass& class_from(const StateValue& value) {
  const auto* python = find_python_class(value.text());
  if (!python) value.refuse("SGD, Adam, AdamW, RMSprop or Adagrad");
  return *python;
}

TrainingState parse_state(const json& object, const TensorFile& file) {
  const StateValue all(object, "");
  const auto version = all.member("version").count();
  TORCH_CHECK(version == kStateVersion, "it is a training state of version ", version, ", this apex_cpp reads version ",
              kStateVersion, ". Use a newer one.");
  all.check_keys({"version", "optimizer", "scaler"});
  const auto optimizer = all.member("optimizer");
  optimizer.check_keys({"class", "params", "param_groups", "state"});
  const PythonClass& python = class_from(optimizer.member("class"));
  TrainingState state;
  state.optimizer.class_name = python.name;
  const auto params = optimizer.member("params"), groups = optimizer.member("param_groups");
  for (size_t i = 0; i < params.size(); ++i) state.optimizer.params.push_back(params.element(i).text());
  for (size_t i = 0; i < groups.size(); ++i) {
    state.optimizer.groups.push_back(group_from(python, groups.element(i), params.size()));
  }
  take_tensors(file, python, state);
  take_steps(optimizer.member("state"), python, state.optimizer);
  const auto scaler = all.member("scaler");
  if (!scaler.is_null()) state.scaler = scaler_from(scaler);
  return state;
}

}  // namespace

TensorFile file_of(const TrainingState& state) {
  TensorFile file;
  for (const auto& [name, tensor] : state.weights) file.tensors.emplace_back(kModelPrefix + name, tensor);
  json groups = json::array();
  for (const auto& group : state.optimizer.groups) groups.push_back(group_to_json(group));
  const json object = {{"version", kStateVersion},
                       {"optimizer",
                        {{"class", state.optimizer.class_name},
                         {"params", state.optimizer.params},
                         {"param_groups", std::move(groups)},
                         {"state", states_to_json(state.optimizer.states, file)}}},
                       {"scaler", state.scaler ? scaler_to_json(*state.scaler) : json()}};
  try {
    file.metadata = {{"format", "pt"}, {kStateKey, object.dump()}};
  } catch (const json::exception&) {
    C10_THROW_ERROR(ValueError, "amp::save_for_python: a parameter's name is not UTF-8. Register it under another name.");
  }
  return file;
}

TrainingState training_state_of(const TensorFile& file) {
  const auto text = file.metadata.find(kStateKey);
  TORCH_CHECK(text != file.metadata.end(),
              "it is a safetensors file, but not a training state of amp::save_for_python or Python's ",
              "apex_cpp.training_state. Read a checkpoint with amp::load_checkpoint, and weights with amp::load_safetensors.");
  try {
    return parse_state(json::parse(text->second), file);
  } catch (const json::exception& error) {
    C10_THROW_ERROR(Error, std::string("its 'training_state' is not valid JSON: ") + error.what() + ". Write the file again.");
  }
}

}  // namespace apex::amp::detail
