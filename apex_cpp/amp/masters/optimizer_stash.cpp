#include <apex_cpp/amp/masters/optimizer_stash.h>

#include <apex_cpp/amp/session/printing.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>

namespace apex::amp::detail {

OptimizerStash::OptimizerStash(std::shared_ptr<Session> session, std::shared_ptr<LeftBehind> left_behind)
    : session_(std::move(session)), left_behind_(std::move(left_behind)) {
  if (session_->enabled()) result.loss_scale = session_->scalers.front().loss_scale();
}

// The model's gradients are as backward made them; those of masters are looked at for what only unscaling made infinite.
NonfiniteGrad OptimizerStash::first_nonfinite() const {
  for (const auto* params : {&model_params_, &native_params_, &masters_}) {
    for (size_t i = 0; i < params->size(); ++i) {
      const at::Tensor& grad = (*params)[i].grad();
      const at::Tensor& named = params == &masters_ ? model_params_[i] : (*params)[i];
      if (grad.defined() && has_nonfinite(grad)) return count_nonfinite(session_->plain_name_of(named), grad);
    }
  }
  return {};
}

// ---- a step ----

void OptimizerStash::skip_next_step(Overflow overflow) {
  if (overflow_) return;
  if (const NonfiniteGrad own = first_nonfinite(); own.found()) overflow.grad = own;
  overflow_ = std::move(overflow);
}

bool OptimizerStash::begin_step(bool has_closure) {
  throw_kept_error();
  check_in_use();
  if (!session_->enabled()) return true;
  TORCH_CHECK(!inside_backward_,
              "step() was called inside a scale_loss block, where the gradients are still scaled. Call it after the block, or "
              "call finish() on the ScaledLoss first.");
  adopt_new_params();
  TORCH_CHECK(!has_closure || !(session_->has_masters() || overflow_),
              "step(closure) is not supported with master weights or a step that is to be skipped: the closure would run "
              "backward without loss scaling. Compute the loss before, inside amp::scale_loss, and call step().");
  if (!overflow_) check_unscaled("step");
  StepResult fresh;
  fresh.loss_scale = result.loss_scale;
  fresh.grad_norm = result.grad_norm;
  result = fresh;
  if (overflow_) {
    skip_step();
    return false;
  }
  if (fused()) {
    fused()->master_step.grads_in_model = fused_order_.pending();
    fused()->master_step.grad_scale = in_fused_order() ? fused_order_.grad_scale() : 1.0;
  }
  return true;
}

void OptimizerStash::skip_step() {
  const Overflow overflow = *std::exchange(overflow_, std::nullopt);
  result.skipped = true;
  result.first_nonfinite = overflow.grad.parameter;
  result.inf_count = overflow.grad.inf_count;
  result.nan_count = overflow.grad.nan_count;
  result.nonfinite_loss = overflow.nonfinite_loss;
  result.loss_id = overflow.loss_id;
  result.loss_scale_before = overflow.scale_before;
  result.loss_scale_after = session_->scaler(overflow.loss_id).loss_scale();
  end_step();
  print_skipped_step(*session_, overflow, result.loss_scale_after);
}

void OptimizerStash::finish_step() {
  if (!session_->enabled()) return;
  if (!fused()) copy_masters_to_model();
  end_step();
}

void OptimizerStash::end_step() {
  drop_master_grads();
  fused_order_.consume();
  materialized_ = materialized_ && delayed_.waiting();  // delayed passes end in the order in which they began
}

void OptimizerStash::zero_grad(bool set_to_none) {
  adopt_new_params();
  for (const auto& param : trained_params()) clear_grad(param, set_to_none);
  drop_master_grads();
  forget_passes();
}

void OptimizerStash::forget_passes() {
  for (auto& stash : native_stash_) stash.reset();
  fused_order_.reset();
  materialized_ = false;
  delayed_.reset();
}

// ---- misuse ----

void OptimizerStash::throw_kept_error() {
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

void OptimizerStash::check_in_use() {
  TORCH_CHECK(!retired_,
              "The model of this optimizer was given to amp::initialize again, with another optimizer, which keeps the master "
              "weights now. Use the handles of the newest call.");
  left_behind_->check();
  TORCH_CHECK(adopted_.empty() || !handle()->param_groups().empty(),
              "The parameters of this optimizer handle were moved into another optimizer. Keep the handle that "
              "amp::initialize returned and move it only into another handle.");
}

void OptimizerStash::check_unscaled(const char* caller) const {
  if (!delayed_.waiting()) return;
  for (const auto& param : trained_params()) {
    TORCH_CHECK(!param.grad().defined(), caller, "() was called while the gradient of ", session_->name_of(param),
                " still carries the loss scale: all passes since the last step had delay_unscale. End with a pass without it, "
                "or drop the gradients with zero_grad().");
  }
}

}  // namespace apex::amp::detail
