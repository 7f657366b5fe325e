// What happens to gradients around a backward pass (BWD-*).
#include <apex_cpp/amp/masters/optimizer_stash.h>

#include <apex_cpp/amp/tensors/grad_kernels.h>

namespace apex::amp::detail {

void OptimizerStash::enter_backward() {
  inside_backward_ = true;
  if (delayed_.waiting()) return delayed_.enter(trained_params());  // SL-09: this pass adds to them
  if (in_fused_order()) return fused_order_.enter(model_params_, native_params_);
  drop_zeroed_masters();
  for (auto& param : model_params_) param.mutable_grad().reset();
  for (size_t i = 0; i < native_params_.size(); ++i) {
    native_stash_[i] = native_params_[i].grad();
    native_params_[i].mutable_grad().reset();
  }
}

void OptimizerStash::drop_zeroed_masters() {
  for (size_t i = 0; i < model_params_.size(); ++i) {
    const GradMark& mark = model_grad_marks_[i];
    if (!mark.defined || !masters_[i].grad().defined()) continue;
    const at::Tensor& grad = model_params_[i].grad();
    const bool dropped = !grad.defined();
    const bool zeroed = !dropped && !mark.still(grad) && !grad.any().item<bool>();
    if (dropped || zeroed) masters_[i].mutable_grad().reset();
  }
}

void OptimizerStash::remember_model_grads() {
  for (size_t i = 0; i < model_params_.size(); ++i) model_grad_marks_[i] = GradMark::of(model_params_[i].grad());
}

OptimizerStash::GradMark OptimizerStash::GradMark::of(const at::Tensor& grad) {
  if (!grad.defined()) return {};
  return {true, static_cast<int64_t>(grad._version())};
}

bool OptimizerStash::GradMark::still(const at::Tensor& grad) const {
  return grad.defined() && static_cast<int64_t>(grad._version()) == version;
}

void OptimizerStash::check_grads_dense() const {
  for (const auto& param : trained_params()) {
    TORCH_CHECK(!param.grad().defined() || !param.grad().is_sparse(), "The gradient of ", session_->name_of(param),
                " is sparse; amp unscales dense gradients. Make the embedding dense (sparse=false), or give it to an "
                "optimizer that amp does not handle.");
  }
}

void OptimizerStash::exit_backward(LossScaler& scaler) {
  inside_backward_ = false;
  at::NoGradGuard no_grad;
  if (delayed_.waiting()) delayed_.exit(scaler.loss_scale());
  delayed_.reset();
  if (in_fused_order()) return fused_order_.exit(model_params_, native_params_, scaler);
  unscale_into_masters(scaler);
  unscale_native(scaler);
  remember_model_grads();
}

void OptimizerStash::unscale_into_masters(LossScaler& scaler) {
  std::vector<at::Tensor> fresh, fresh_masters, again, again_masters;
  for (size_t i = 0; i < model_params_.size(); ++i) {
    const at::Tensor& grad = model_params_[i].grad();
    if (!grad.defined()) continue;
    at::Tensor& master_grad = masters_[i].mutable_grad();
    const bool accumulates = master_grad.defined();
    if (!accumulates) master_grad = new_master_grad(i);
    (accumulates ? again : fresh).push_back(in_layout_of(grad, master_grad));
    (accumulates ? again_masters : fresh_masters).push_back(master_grad);
  }
  scaler.unscale(fresh, fresh_masters);
  scaler.unscale_with_stashed(again, again_masters, again_masters);
}

void OptimizerStash::unscale_native(LossScaler& scaler) {
  PassGrads grads;
  for (size_t i = 0; i < native_params_.size(); ++i) {
    grads.add(native_params_[i], std::exchange(native_stash_[i], at::Tensor()));
  }
  scaler.unscale(grads.fresh, grads.fresh);
  scaler.unscale_with_stashed(grads.again, grads.stashed, grads.again);
}

void OptimizerStash::exit_backward_delayed(double scale) {
  inside_backward_ = false;
  const at::NoGradGuard no_grad;
  if (delayed_.waiting()) delayed_.exit(scale);
  delayed_.wait(scale);
}

void OptimizerStash::abandon_backward() {
  // Ended already: what was put aside is mixed with the pass's gradients.
  if (!inside_backward_) return zero_grad(/*set_to_none=*/true);
  inside_backward_ = false;
  if (delayed_.waiting()) return delayed_.abandon();
  if (in_fused_order()) return fused_order_.abandon(model_params_, native_params_);
  for (auto& param : model_params_) param.mutable_grad().reset();
  for (size_t i = 0; i < native_params_.size(); ++i) {
    native_params_[i].mutable_grad() = std::move(native_stash_[i]);
    native_stash_[i] = at::Tensor();
  }
  model_grad_marks_.assign(model_params_.size(), {});
}

}  // namespace apex::amp::detail
