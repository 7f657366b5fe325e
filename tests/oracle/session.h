#pragma once

#include <apex_cpp/amp.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/oracle/case_file.h"
#include "tests/oracle/model_builder.h"
#include "tests/oracle/report.h"
#include "tests/oracle/tolerances.h"

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
  std::vector<std::vector<std::string>> ids;  // model parameters, by group and position
  std::optional<bool> will_skip;              // what the last backward event says about the next step
};

// Model, optimizer and amp states as a program would put them into a checkpoint.
struct Checkpoint {
  std::map<std::string, std::string> models;
  std::map<std::string, std::string> optimizers;
  amp::StateDict amp;
};

// One case being played: the objects of the program that the case describes, and access to what it expects.
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
  // Twice the sum of the learning rates of an optimizer's steps, if those act like a sign function, else 0. It goes on counting
  // over a rebuild, since what was loaded has the deviations of before.
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
  bool python_backend() const { return python_backend_; }
  // Apex's Python fallback stops unscaling at the first overflow, so gradients differ until they are zeroed.
  bool gradients_comparable = true;
  // A checkpoint was loaded into an optimizer with masters whose steps act like a sign function: Apex starts again from 16-bit
  // values, this library from the exact ones, so the steps part.
  bool resumed_apart = false;

  // Compares with a stored tensor, if there is one.
  void compare_stored(const std::string& name, const at::Tensor& got, const Tolerance& tolerance);

 private:
  void build_models();
  void build_optimizers();
  void initialize(const Json& args);
  void override_scalers();
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
  bool python_backend_ = false;
};

// Plays a case of kind train, optimizer or fp16_optimizer.
void play_case(const CaseFile& case_file, Report& report);

}  // namespace oracle
