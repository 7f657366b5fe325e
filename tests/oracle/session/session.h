#pragma once

#include <apex_cpp/amp.h>
#include <apex_cpp/fp16_utils.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/oracle/networks/model_builder.h"
#include "tests/oracle/reading/case_file.h"
#include "tests/oracle/session/history.h"
#include "tests/oracle/session/resume_check.h"
#include "tests/oracle/verdict/report.h"
#include "tests/oracle/verdict/tolerances.h"

namespace oracle {

namespace amp = apex::amp;

struct ModelSlot {
  std::string name;
  Net net{nullptr};
  std::optional<amp::Model<Net>> handle;  // what initialize answered
};

struct OptimizerSlot {
  std::string name;
  std::string type;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<apex::fp16_utils::FP16_Optimizer> fp16;  // around `optimizer`, where the case wraps it so
  std::vector<std::vector<std::string>> ids;               // model parameters, by group and position
  std::optional<bool> will_skip;                           // what the last backward event says of the step that must follow
};

// Model, optimizer and amp states as a program would put them into a checkpoint.
struct Checkpoint {
  std::map<std::string, std::string> models;
  std::map<std::string, std::string> optimizers;
  amp::StateDict amp;
};

// What an entry of the repair file can say of the rest of a case. The last lasts until the next zero_grad.
inline constexpr const char* kParametersWithinSignSteps = "parameters_within_sign_steps";
inline constexpr const char* kStatesApart = "optimizer_states_apart";
inline constexpr const char* kValuesApart = "values_apart";
inline constexpr const char* kGradientsApart = "gradients_apart";

// One case being played: the objects of the program that the case describes, and access to its expectations.
class Session {
 public:
  Session(const CaseFile& case_file, Report& report);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Builds models and optimizers from the initial values and initializes amp as the case says.
  void start();
  // Checks dtypes, properties and scalers against `expect` (after_initialize, rebuild).
  void check_initialized(const Json& expect);
  void check_amp_state(const Json& expect);

  const CaseFile& case_file() const { return case_file_; }
  Report& report() { return report_; }
  const Tolerances& tolerances() const { return tolerances_; }
  std::vector<ModelSlot>& models() { return models_; }
  std::vector<OptimizerSlot>& optimizers() { return optimizers_; }
  ModelSlot& model(const std::string& name);
  OptimizerSlot& optimizer(const std::string& name);
  // "m0/0.weight" -> the model's parameter.
  at::Tensor parameter(const std::string& id);
  // Twice the sum of the learning rates of an optimizer's steps, if those act like a sign function, else 0. A rebuild does not
  // reset it, since the loaded values have the earlier deviations.
  double& sign_steps(const std::string& optimizer) { return sign_steps_[optimizer]; }
  // The same for the optimizer that steps this parameter; 0 if none does.
  double sign_steps_of(const std::string& id);
  double largest_sign_steps() const;

  // A value that an event made (outputs, losses), or else a stored tensor.
  at::Tensor value(const std::string& name) const;
  void set_value(const std::string& name, at::Tensor value) { values_[name] = std::move(value); }
  std::map<std::string, Checkpoint>& checkpoints() { return checkpoints_; }

  // amp is initialized and not disabled.
  bool amp_enabled() const { return amp_enabled_; }

  // Puts in force what the repair file says of a place like this event.
  void apply_repairs(const Json& event);
  bool relaxed(const char* effect) const { return relaxed_.count(effect) > 0; }
  void gradients_agree_again() { relaxed_.erase(kGradientsApart); }
  History& history() { return history_; }
  ResumeCheck& resume_check() { return resume_check_; }

  // Compares with the stored tensor of this name, which must be there.
  void compare_stored(const std::string& name, const at::Tensor& got, const Tolerance& tolerance);
  // For a stored tensor that is not compared on purpose.
  void leave_stored(const std::string& name) const { (void)case_file_.expected(name, 0); }
  // After the last event: what was expected and never seen.
  void finish();

 private:
  void build_models();
  void build_optimizers();
  void initialize(const Json& args);
  void override_scalers();
  Features features_of(const Json& event);
  void check_dtypes(const Json& expect);
  void check_properties(const Json& expect);

  const CaseFile& case_file_;
  Report& report_;
  Tolerances tolerances_;
  std::vector<ModelSlot> models_;
  std::vector<OptimizerSlot> optimizers_;
  std::map<std::string, double> sign_steps_;
  std::map<std::string, at::Tensor> values_;
  std::map<std::string, Checkpoint> checkpoints_;
  bool amp_enabled_ = false;
  History history_;
  ResumeCheck resume_check_;
  std::set<std::string> relaxed_;
};

// Plays a case of kind train, optimizer or fp16_optimizer.
void play_case(const CaseFile& case_file, Report& report);

}  // namespace oracle
