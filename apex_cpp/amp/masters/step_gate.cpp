#include <apex_cpp/amp/masters/step_gate.h>

#include <apex_cpp/amp/session/printing.h>

#include <utility>

namespace apex::amp::detail {

StepGate::StepGate(Session& session) : session_(session) {
  if (session_.enabled()) result.loss_scale = session_.scalers.front().loss_scale();
}

void StepGate::throw_kept_error() {
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

void StepGate::check_in_use(LeftBehind& left_behind) {
  TORCH_CHECK(!retired_,
              "The model of this optimizer was given to amp::initialize again, with another optimizer, which keeps the master "
              "weights now. Use the handles of the newest call.");
  left_behind.check();
}

void StepGate::skip_next_step(const Overflow& overflow) {
  if (!overflow_) overflow_ = overflow;
}

void StepGate::check_closure(bool has_closure) const {
  TORCH_CHECK(!has_closure || !(session_.has_masters() || skips()),
              "step(closure) is not supported with master weights or a step that is to be skipped: the closure would run "
              "backward without loss scaling. Compute the loss before, inside amp::scale_loss, and call step().");
}

bool StepGate::open() {
  StepResult fresh;
  fresh.loss_scale = result.loss_scale;
  fresh.grad_norm = result.grad_norm;
  result = fresh;
  if (!overflow_) return true;
  report_skip(*std::exchange(overflow_, std::nullopt));
  return false;
}

void StepGate::report_skip(const Overflow& overflow) {
  result.skipped = true;
  result.first_nonfinite = overflow.grad.parameter;
  result.inf_count = overflow.grad.inf_count;
  result.nan_count = overflow.grad.nan_count;
  result.nonfinite_grads = overflow.grad.grads;
  result.grad = overflow.grad.statistics;
  result.nonfinite_ranks = overflow.grad.ranks;
  result.nonfinite_loss = overflow.nonfinite_loss;
  result.loss_id = overflow.loss_id;
  result.loss_scale_before = overflow.scale_before;
  result.loss_scale_after = session_.scaler(overflow.loss_id).loss_scale();
  print_skipped_step(session_, overflow, result.loss_scale_after);
}

}  // namespace apex::amp::detail
