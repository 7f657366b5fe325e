#include "tests/oracle/session/session.h"

#include <algorithm>
#include <set>

#include "tests/oracle/events/events.h"
#include "tests/oracle/features.h"
#include "tests/oracle/session/initialize_args.h"
#include "tests/oracle/session/optimizers.h"
#include "tests/oracle/session/wraps.h"

namespace oracle {
namespace {

std::string opt_level_of(const Json& json) {
  const Json* initialize = json.find("initialize");
  if (!initialize || initialize->is_null()) return "";
  const Json& args = initialize->at("args");
  return args.bool_or("enabled", true) ? args.string_or("opt_level", "O1") : "O0";
}

template <class Slots>
auto& named(Slots& slots, const std::string& name, const char* what) {
  auto found = std::find_if(slots.begin(), slots.end(), [&](const auto& slot) { return slot.name == name; });
  if (found == slots.end()) throw std::runtime_error(std::string("the case has no ") + what + " '" + name + "'");
  return *found;
}

// What deviations are summed up by: nothing that depends on the case's name.
std::string group_of(const Json& json) {
  std::set<std::string> types;
  for (const Json& optimizer : json.at("optimizers").items()) types.insert(optimizer.at("type").as_string());
  const std::string level = opt_level_of(json);
  std::string group = level.empty() ? json.at("kind").as_string() : level;
  for (const auto& type : types) group += " " + type;
  return group;
}

}  // namespace

Session::Session(const CaseFile& case_file, Report& report)
    : case_file_(case_file),
      report_(report),
      tolerances_(case_file.json().at("kind").as_string(), opt_level_of(case_file.json())) {}

Session::~Session() { amp::reset(); }

void Session::start() {
  models_.clear();
  optimizers_.clear();
  amp_enabled_ = false;
  amp::reset();
  build_models();
  build_optimizers();
  const Json* initialize_entry = case_file_.json().find("initialize");
  if (initialize_entry && !initialize_entry->is_null()) initialize(initialize_entry->at("args"));
}

void Session::build_models() {
  for (const Json& model : case_file_.json().at("models").items()) {
    models_.push_back({model.at("name").as_string(), Net(model, case_file_), std::nullopt});
  }
}

void Session::build_optimizers() {
  for (const Json& entry : case_file_.json().at("optimizers").items()) {
    OptimizerSlot slot;
    slot.name = entry.at("name").as_string();
    slot.type = entry.at("type").as_string();
    const OptimizerType& type = optimizer_type(slot.type);
    auto defaults = type.defaults();
    set_options(slot.type, *defaults, entry.find("args"));
    OptimizerType::Groups groups;
    for (const Json& group : entry.at("groups").items()) {
      auto options = defaults->clone();
      set_options(slot.type, *options, group.find("options"));
      std::vector<at::Tensor> params;
      slot.ids.emplace_back();
      for (const Json& id : group.at("params").items()) {
        params.push_back(parameter(id.as_string()));
        slot.ids.back().push_back(id.as_string());
      }
      groups.emplace_back(std::move(params), std::move(options));
    }
    slot.optimizer = type.make(std::move(groups), *defaults);
    if (const Json* wrap = entry.find("wrap"); wrap && !wrap->is_null()) wrap_optimizer(slot, *wrap);
    optimizers_.push_back(std::move(slot));
  }
}

void Session::initialize(const Json& args) {
  std::vector<Net> nets;
  for (const auto& slot : models_) nets.push_back(slot.net);
  std::vector<std::unique_ptr<torch::optim::Optimizer>> originals;
  for (auto& slot : optimizers_) originals.push_back(std::move(slot.optimizer));
  auto [handles, optimizers] = amp::initialize(nets, originals, opt_level_arg(args), initialize_options(args));
  for (size_t i = 0; i < models_.size(); ++i) models_[i].handle = handles.at(i);
  for (size_t i = 0; i < optimizers_.size(); ++i) optimizers_[i].optimizer = std::move(optimizers.at(i));
  amp_enabled_ = args.bool_or("enabled", true);
  if (amp_enabled_) override_scalers();
}

void Session::override_scalers() {
  const Json* overrides = case_file_.json().find("scaler_overrides");
  if (!overrides || overrides->is_null()) return;
  for (const Json& entry : overrides->items()) {
    const Json* id = entry.find("loss_id");
    const bool all = !id || id->is_null() || id->is_string();
    for (int64_t i = 0; i < amp::num_loss_scalers(); ++i) {
      if (all || id->as_int() == i) amp::loss_scaler(i).set_scale_window(entry.at("scale_window").as_int());
    }
  }
}

ModelSlot& Session::model(const std::string& name) { return named(models_, name, "model"); }

OptimizerSlot& Session::optimizer(const std::string& name) { return named(optimizers_, name, "optimizer"); }

at::Tensor Session::parameter(const std::string& id) {
  const size_t slash = id.find('/');
  if (slash == std::string::npos) throw std::runtime_error("'" + id + "' is no MODEL/PARAMETER");
  Net& net = model(id.substr(0, slash)).net;
  const auto parameters = net->named_parameters();
  const at::Tensor* found = parameters.find(net->resolve(id.substr(slash + 1)));
  if (!found) throw std::runtime_error("the model has no parameter '" + id + "'");
  return *found;
}

double Session::sign_steps_of(const std::string& id) {
  for (const auto& slot : optimizers_) {
    for (const auto& group : slot.ids) {
      if (std::find(group.begin(), group.end(), id) != group.end()) return sign_steps(slot.name);
    }
  }
  return 0;
}

double Session::largest_sign_steps() const {
  double largest = 0;
  for (const auto& [name, steps] : sign_steps_) largest = std::max(largest, steps);
  return largest;
}

at::Tensor Session::value(const std::string& name) const {
  auto found = values_.find(name);
  return found != values_.end() ? found->second : case_file_.tensor(name);
}

void Session::compare_stored(const std::string& name, const at::Tensor& got, const Tolerance& tolerance) {
  const auto expected = case_file_.expected(name, got.defined() ? got.numel() : 0);
  if (!expected) return report_.fail(name, "a stored tensor", "none in tensors.safetensors");
  compare_tensor(report_, name, got, *expected, tolerance);
}

void Session::finish() {
  report_.at("end");
  resume_check_.finish(report_);
  for (auto& slot : optimizers_) check_will_skip(*this, slot);
  check_all_compared(report_, case_file_);
}

void play_case(const CaseFile& case_file, Report& report) {
  const Json& json = case_file.json();
  play(report, case_file.name(), group_of(json), [&] {
    require_features(json);
    Session session(case_file, report);
    session.start();
    if (const Json* expect = json.find("after_initialize")) session.check_initialized(*expect);
    const auto& events = json.at("events").items();
    for (size_t i = 0; i < events.size(); ++i) {
      report.at("event " + std::to_string(i) + " (" + events[i].at("op").as_string() + ")");
      play_event(session, events[i]);
    }
    session.finish();
  });
}

}  // namespace oracle
