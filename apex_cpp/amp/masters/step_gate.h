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

/// What stands between an optimizer's handle and its step (OPT-05, SL-11, SL-12): errors for a handle that is not to be used
/// any more, and the skip of a step after an overflow.
class StepGate {
 public:
  explicit StepGate(Session& session);

  /// An error that a destructor could not throw is kept here and thrown by the next call that can.
  void keep_error(std::exception_ptr error) { kept_error_ = std::move(error); }
  void throw_kept_error();

  /// A later `initialize` gave the model's parameters to another optimizer.
  void retire() { retired_ = true; }
  /// Errors: RuntimeError if the handle is retired, or the original optimizer was used.
  void check_in_use(OriginalOptimizer& original_optimizer);

  /// The first overflow before a step is the one that its skip is told with.
  void skip_next_step(const Overflow& overflow);
  bool skips() const { return overflow_.has_value(); }
  /// The next step is to run after all.
  void forget_skip() { overflow_.reset(); }
  /// Errors: RuntimeError for a closure where masters exist or the step is to be skipped.
  void check_closure(bool has_closure) const;
  /// Begins the result of a step. Returns false if the step is skipped, and tells so.
  bool open();

  StepResult result;

 private:
  void report_skip(const Overflow& overflow);

  Session& session_;
  std::optional<Overflow> overflow_;  // the next step is to be skipped on its account
  bool retired_ = false;
  std::exception_ptr kept_error_;
};

/// Looks at the first steps of an optimizer class of the program's own. One that steps an inner optimizer, or a list of
/// parameters, writes into the model's 16-bit weights, and the masters, which have not moved, are then copied over them.
///
/// Some writes leave no version, so that values are compared, which synchronises: until masters have moved a weight, and
/// never while a CUDA graph is captured.
class CustomOptimizerCheck {
 public:
  explicit CustomOptimizerCheck(bool is_own_class) : is_over_(!is_own_class) {}

  /// A step begins. The weights are the rounded masters.
  void begin(MasterTable::Params with_masters);
  /// The step has run. Errors: RuntimeError naming a weight that it has written and whose master it has not; all weights are
  /// then what they were.
  void check(const Session& session) const;
  /// The masters have been copied to the weights.
  void end();

 private:
  struct Weight {
    at::Tensor param, master, before;
  };

  bool is_over_;
  std::vector<Weight> weights_;
};

}  // namespace apex::amp::detail

// Which gradient of an optimizer an overflow report names. Both wait for the device.
namespace apex::amp::detail {

/// The first one in the model, as backward made it, that is not finite; else the first of the masters, which only unscaling
/// made infinite. Not found() if there is none.
NonfiniteGrad first_nonfinite(const MasterTable& table, const Session& session);
/// The same of gradients that are spread over processes. Collective.
NonfiniteGrad first_nonfinite(const GradShards& shards, const Session& session);

}  // namespace apex::amp::detail
