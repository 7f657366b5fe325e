#pragma once

#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/step_result.h>

#include <ATen/core/Tensor.h>

#include <exception>
#include <optional>
#include <vector>

namespace apex::amp::detail {

/// Decides whether an optimizer's step may run (OPT-05, SL-11, SL-12): throws for a handle that must not be used, and skips the
/// step after an overflow.
class StepGate {
 public:
  explicit StepGate(Session& session);

  /// Keeps an error that a destructor could not throw.
  void defer_error(const std::exception_ptr& error) { deferred_error_ = error; }
  const std::exception_ptr& deferred_error() const { return deferred_error_; }

  /// Marks the handle as replaced: a later `initialize` gave the model's parameters to another optimizer.
  void retire() { retired_ = true; }
  bool is_retired() const { return retired_; }
  /// Errors: RuntimeError if the handle is retired, or the original optimizer was used.
  void check_in_use(OriginalOptimizer& original_optimizer);

  /// Marks the next step to be skipped. Keeps the first overflow; the skip message reports it.
  void skip_next_step(const Overflow& overflow);
  bool skips() const { return overflow_.has_value(); }
  /// Cancels a pending skip.
  void forget_skip() { overflow_.reset(); }
  /// Errors: RuntimeError for a closure with master weights, or if the step will be skipped.
  void check_closure(bool has_closure) const;
  /// Starts a new `result`. Returns false, and prints a message, if the step is skipped.
  bool begin_step();

  StepResult result;

 private:
  void report_skip(const Overflow& overflow);

  Session& session_;
  std::optional<Overflow> overflow_;  // if set, the next step is skipped because of it
  bool retired_ = false;
  std::exception_ptr deferred_error_;
};

/// Checks the first steps of a custom optimizer class. A class that steps an inner optimizer, or its own list of parameters,
/// writes to the model's 16-bit weights; amp then overwrites them with unchanged masters, and nothing is trained.
///
/// Compares values, since some writes do not change the version counter. This synchronises at each step until a step has
/// changed a weight through its master. Does nothing while a CUDA graph is captured.
class CustomOptimizerCheck {
 public:
  explicit CustomOptimizerCheck(bool is_custom_class) : is_done_(!is_custom_class) {}

  /// Before a step, when the weights equal the rounded masters.
  void begin(MasterTable::Params with_masters);
  /// After the step. Errors: RuntimeError naming a weight that the step wrote to without its master; all weights are then
  /// restored.
  void check(const Session& session) const;
  /// After the masters were copied to the weights.
  void end();

 private:
  struct Weight {
    at::Tensor param, master, before;
  };

  bool is_done_;
  std::vector<Weight> weights_;
};

// Finds the gradient that an overflow report names.

/// The first non-finite gradient in the model; else the first non-finite master gradient, which overflowed during unscaling.
/// Not found() if there is none. Synchronises.
NonfiniteGrad first_nonfinite(const MasterTable& table, const Session& session);
/// The same for sharded gradients, as the last `GradShards::norm` found it.
NonfiniteGrad first_nonfinite(const GradShards& shards, const Session& session);

}  // namespace apex::amp::detail
