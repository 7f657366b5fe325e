#pragma once

#include <exception>
#include <optional>

#include <apex_cpp/amp/masters/step_result.h>
#include <apex_cpp/amp/optimizer_classes/left_behind.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/session.h>

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
  void check_in_use(LeftBehind& left_behind);

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

}  // namespace apex::amp::detail
