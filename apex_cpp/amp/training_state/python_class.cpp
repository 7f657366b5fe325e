#include <apex_cpp/amp/training_state/python_class.h>

#include <c10/util/Exception.h>

#include <cstring>
#include <tuple>

namespace apex::amp::detail {
namespace {

using Type = PythonOption::Type;

PythonOption flag(const char* name) { return {name, Type::flag, false}; }
PythonOption dampening() { return {"dampening", Type::number, 0.0, false, true}; }
// The sums, which the file has, began with this value; nothing else reads it.
PythonOption initial_accumulator_value() { return {"initial_accumulator_value", Type::number, 0.0, true}; }

PythonClass adam_named(const char* name) {
  const PythonOption betas = {"betas", Type::betas, std::make_tuple(0.9, 0.999)};
  return {name,
          {{"lr"}, betas, {"eps"}, {"weight_decay"}, flag("amsgrad"), flag("maximize")},
          {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq", "amsgrad"}}};
}

const std::vector<PythonClass>& python_classes() {
  static const std::vector<PythonClass> classes = {
      {"SGD",
       {{"lr"}, {"momentum"}, dampening(), {"weight_decay"}, flag("nesterov"), flag("maximize")},
       {{"momentum_buffer", "", true}},
       false},
      adam_named("Adam"),
      adam_named("AdamW"),
      {"RMSprop",
       {{"lr"}, {"alpha"}, {"eps"}, {"weight_decay"}, {"momentum"}, flag("centered"), flag("maximize")},
       {{"square_avg"}, {"momentum_buffer", "momentum"}, {"grad_avg", "centered"}}},
      {"Adagrad",
       {{"lr"}, {"lr_decay"}, {"weight_decay"}, initial_accumulator_value(), {"eps"}, flag("maximize")},
       {{"sum"}},
       true,
       true}};
  return classes;
}

const std::vector<OwnClass>& own_classes() {
  using Counted = OwnClass::Steps;
  static const std::vector<OwnClass> classes = {
      {"torch::optim::SGD", "SGD", Counted::none},
      {"torch::optim::Adam", "Adam"},
      {"torch::optim::AdamW", "AdamW"},
      {"torch::optim::RMSprop", "RMSprop"},
      {"torch::optim::Adagrad", "Adagrad"},
      {"apex::optimizers::FusedSGD", "SGD", Counted::none, false, {{"wd_after_momentum", false}}},
      {"apex::optimizers::FusedAdam", "Adam", Counted::by_group, true, {{"bias_correction", true}, {"amsgrad", false}}},
      {"apex::optimizers::FusedAdagrad", "Adagrad", Counted::none, false, {{"adagrad_w_mode", false}}}};
  return classes;
}

template <class Entries>
auto find_named(const Entries& entries, const std::string& name) {
  for (const auto& entry : entries) {
    if (name == entry.name) return &entry;
  }
  return static_cast<decltype(&*entries.begin())>(nullptr);
}

template <class Entries>
std::string names_in(const Entries& entries) {
  std::string names;
  for (const auto& entry : entries) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

}  // namespace

const PythonOption* PythonClass::find_option(const std::string& option) const { return find_named(options, option); }
const PythonTensor* PythonClass::find_tensor(const std::string& tensor) const { return find_named(tensors, tensor); }
std::string PythonClass::names_of_options() const { return names_in(options); }
std::string PythonClass::names_of_tensors() const { return names_in(tensors); }

const PythonClass* find_python_class(const std::string& name) { return find_named(python_classes(), name); }

const OwnClass& own_class_of(const std::string& name) {
  const OwnClass* own = find_named(own_classes(), name);
  TORCH_CHECK(own, "the optimizer's class is ", name,
              ", for which no file for Python can be written or read. There are files for ", names_in(own_classes()), ".");
  return *own;
}

}  // namespace apex::amp::detail
