#include <apex_cpp/amp/optimizer_stash.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>

#include <apex_cpp/amp/amp_optimizer.h>
#include <apex_cpp/amp/grad_kernels.h>
#include <apex_cpp/amp/param_state.h>
#include <apex_cpp/amp/printing.h>

#include <algorithm>
#include <cmath>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {
namespace {

bool is_low_precision(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

}  // namespace

OptimizerStash::OptimizerStash(std::shared_ptr<Session> session, std::shared_ptr<LeftBehind> left_behind)
    : session_(std::move(session)), left_behind_(std::move(left_behind)) {
  if (session_->enabled()) result.loss_scale = session_->scalers.front().loss_scale();
}

// ---- parameters and masters ----

void OptimizerStash::check_dtype(const at::Tensor& param) const {
  TORCH_CHECK_TYPE(is_low_precision(param) || param.scalar_type() == at::kFloat, "The optimizer's parameter ",
                   session_->name_of(param), " has dtype ", param.scalar_type(),
                   "; amp trains float32, float16 and bfloat16 parameters. Convert it to float32 before amp::initialize, or "
                   "leave it to an optimizer of its own.");
}

void OptimizerStash::check_new_group(const std::vector<at::Tensor>& params) const {
  for (const auto& param : params) {
    check_dtype(param);
    TORCH_CHECK(!adopted_impls_.count(param.unsafeGetTensorImpl()), "add_param_group: the parameter ", session_->name_of(param),
                " is in the optimizer already.");
  }
}

void OptimizerStash::adopt_new_params() {
  if (!session_->enabled()) return;
  auto& groups = handle()->param_groups();
  adopted_.resize(groups.size(), 0);
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& params = groups[i].params();
    for (size_t j = adopted_[i]; j < params.size(); ++j) check_dtype(params[j]);
  }
  bool found_new = false;
  for (size_t i = 0; i < groups.size(); ++i) {
    auto& params = groups[i].params();
    for (; adopted_[i] < params.size(); ++adopted_[i]) {
      adopt(params[adopted_[i]], !adopted_once_);
      found_new = true;
    }
  }
  adopted_once_ = true;
  if (!found_new || !session_->has_masters()) return;
  match_state_to_params(*handle());
  if (fused()) describe_copies();
}

// The optimizer's view of the masters: the model params behind them, in its own groups' order.
void OptimizerStash::describe_copies() {
  std::unordered_map<const at::TensorImpl*, size_t> index;
  for (size_t i = 0; i < masters_.size(); ++i) index[masters_[i].unsafeGetTensorImpl()] = i;
  auto& copies = fused()->master_step.model_params;
  copies.clear();
  for (const auto& group : handle()->param_groups()) {
    copies.emplace_back(group.params().size());
    for (size_t i = 0; i < group.params().size(); ++i) {
      const auto found = index.find(group.params()[i].unsafeGetTensorImpl());
      if (found != index.end()) copies.back()[i] = model_params_[found->second];
    }
  }
}

void OptimizerStash::adopt(at::Tensor& param, bool first_time) {
  if (session_->has_masters() && !param.requires_grad()) return;  // MW-01: a frozen parameter stays as it is
  if (!adopted_impls_.insert(param.unsafeGetTensorImpl()).second) {
    // A tied parameter that stands in the groups twice: it has one master.
    if (const at::Tensor master = master_of(param); master.defined()) param = master;
    return;
  }
  if (session_->has_masters() && is_low_precision(param)) return give_master(param);
  // MW-06: gradients from before the masters existed are dropped with theirs.
  if (session_->has_masters() && first_time) param.mutable_grad().reset();
  native_params_.push_back(param);
  native_stash_.emplace_back();
}

void OptimizerStash::give_master(at::Tensor& param) {
  const at::Tensor master = param.detach().clone().to(at::kFloat).requires_grad_();
  rekey_param_state(*handle(), param, master);
  master_index_[param.unsafeGetTensorImpl()] = masters_.size();
  model_params_.push_back(param);
  masters_.push_back(master);
  model_grad_marks_.emplace_back();
  spare_grads_.emplace_back();
  param = master;
}

at::Tensor OptimizerStash::master_of(const at::Tensor& param) const {
  const auto found = master_index_.find(param.unsafeGetTensorImpl());
  return found == master_index_.end() ? at::Tensor() : masters_[found->second];
}

void OptimizerStash::check_masters_fit(const std::vector<at::Tensor>& values) const {
  TORCH_CHECK(values.size() == masters_.size(), "The saved optimizer has ", values.size(), " master weights, this one has ",
              masters_.size(), ". Load it into an optimizer over the same parameters at the same opt level.");
  for (size_t i = 0; i < values.size(); ++i) {
    TORCH_CHECK(values[i].sizes() == masters_[i].sizes(), "The saved master weight of ", session_->name_of(model_params_[i]),
                " has shape ", values[i].sizes(), ", expected ", masters_[i].sizes(), ".");
  }
}

void OptimizerStash::load_masters(const std::vector<at::Tensor>& values) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < values.size(); ++i) masters_[i].copy_(values[i]);
}

// ---- a backward pass ----

void OptimizerStash::enter_backward() {
  inside_backward_ = true;
  if (has_scaled_gradients_) return;  // SL-09: this pass adds to them
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

void OptimizerStash::exit_backward(LossScaler& scaler) {
  inside_backward_ = false;
  at::NoGradGuard no_grad;
  for (const auto* params : {&model_params_, &native_params_}) {
    for (const auto& param : *params) {
      TORCH_CHECK(!param.grad().defined() || !param.grad().is_sparse(), "The gradient of ", session_->name_of(param),
                  " is sparse; amp unscales dense gradients. Make the embedding dense (sparse=false), or give it to an "
                  "optimizer that amp does not handle.");
    }
  }
  has_scaled_gradients_ = false;
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
  std::vector<at::Tensor> fresh, again, stashed;
  for (size_t i = 0; i < native_params_.size(); ++i) {
    at::Tensor& grad = native_params_[i].mutable_grad();
    if (grad.defined() && !grad.is_non_overlapping_and_dense()) grad = grad.contiguous();
    const at::Tensor stash = std::exchange(native_stash_[i], at::Tensor());
    if (!grad.defined()) {
      grad = stash;
    } else if (stash.defined()) {
      again.push_back(grad);
      stashed.push_back(in_layout_of(stash, grad));
    } else {
      fresh.push_back(grad);
    }
  }
  scaler.unscale(fresh, fresh);
  scaler.unscale_with_stashed(again, stashed, again);
}

void OptimizerStash::exit_backward_delayed() {
  inside_backward_ = false;
  has_scaled_gradients_ = true;
}

void OptimizerStash::abandon_backward() {
  inside_backward_ = false;
  if (has_scaled_gradients_) return;  // nothing was put aside
  if (in_fused_order()) return fused_order_.abandon(model_params_, native_params_);
  for (auto& param : model_params_) param.mutable_grad().reset();
  for (size_t i = 0; i < native_params_.size(); ++i) {
    native_params_[i].mutable_grad() = std::move(native_stash_[i]);
    native_stash_[i] = at::Tensor();
  }
  model_grad_marks_.assign(model_params_.size(), {});
}

std::string OptimizerStash::first_nonfinite() const {
  for (const auto* params : {&model_params_, &native_params_}) {
    for (const auto& param : *params) {
      if (param.grad().defined() && !at::isfinite(param.grad()).all().item<bool>()) return session_->plain_name_of(param);
    }
  }
  return {};
}

// ---- a step ----

void OptimizerStash::skip_next_step(int64_t loss_id) {
  if (skip_next_step_) return;
  skip_next_step_ = true;
  skip_loss_id_ = loss_id;
  result.first_nonfinite = first_nonfinite();
}

bool OptimizerStash::begin_step(bool has_closure) {
  throw_kept_error();
  check_in_use();
  if (!session_->enabled()) return true;
  TORCH_CHECK(!inside_backward_,
              "step() was called inside a scale_loss block, where the gradients are still scaled. Call it after the block, or "
              "call finish() on the ScaledLoss first.");
  adopt_new_params();
  TORCH_CHECK(!has_closure || !(session_->has_masters() || skip_next_step_),
              "step(closure) is not supported with master weights or a step that is to be skipped: the closure would run "
              "backward without loss scaling. Compute the loss before, inside amp::scale_loss, and call step().");
  result.skipped = skip_next_step_;
  if (!skip_next_step_) {
    result.first_nonfinite.clear();
    if (fused()) {
      fused()->master_step.grads_in_model = fused_order_.pending();
      fused()->master_step.grad_scale = in_fused_order() ? fused_order_.grad_scale() : 1.0;
    }
    return true;
  }
  skip_next_step_ = false;
  end_step();
  print_skipped_step(*session_, skip_loss_id_, result);
  return false;
}

void OptimizerStash::finish_step() {
  if (!session_->enabled()) return;
  if (!fused()) copy_masters_to_model();
  end_step();
}

void OptimizerStash::end_step() {
  drop_master_grads();
  fused_order_.consume();
  materialized_ = false;
}

void OptimizerStash::copy_masters_to_model() {
  at::NoGradGuard no_grad;
  kernels::multi_tensor_copy(masters_, model_params_);
}

void OptimizerStash::drop_master_grads() {
  for (size_t i = 0; i < masters_.size(); ++i) {
    const at::Tensor grad = std::exchange(masters_[i].mutable_grad(), at::Tensor());
    if (is_spare(grad, masters_[i])) spare_grads_[i] = grad;
  }
}

// On a CPU fresh memory costs more than the pass that writes it. Elsewhere torch's allocator has it at hand, for others too.
bool OptimizerStash::is_spare(const at::Tensor& grad, const at::Tensor& master) {
  return grad.defined() && grad.is_cpu() && grad.use_count() == 1 && grad.storage().use_count() == 1 &&
         grad.scalar_type() == at::kFloat && grad.sizes() == master.sizes() && grad.strides() == master.strides();
}

at::Tensor OptimizerStash::new_master_grad(size_t i) {
  const at::Tensor spare = std::exchange(spare_grads_[i], at::Tensor());
  return spare.defined() ? spare : at::empty_like(masters_[i]);
}

void OptimizerStash::zero_grad(bool set_to_none) {
  adopt_new_params();
  for (auto* params : {&model_params_, &native_params_}) {
    for (auto& param : *params) {
      at::Tensor& grad = param.mutable_grad();
      if (!grad.defined()) continue;
      if (set_to_none) {
        grad.reset();
      } else {
        grad = grad.detach();
        grad.zero_();
      }
    }
  }
  for (auto& stash : native_stash_) stash.reset();
  drop_master_grads();
  fused_order_.reset();
  materialized_ = false;
  has_scaled_gradients_ = false;
}

// ---- the fused order, and clipping ----

StepsMasters* OptimizerStash::fused() const { return dynamic_cast<StepsMasters*>(left_behind_->handle); }

bool OptimizerStash::in_fused_order() const {
  if (materialized_ || !session_->has_masters()) return false;
  const StepsMasters* optimizer = fused();
  return optimizer != nullptr && !optimizer->materialize_master_grads();
}

void OptimizerStash::materialize_grads() {
  if (!fused_order_.pending()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> scaled, unscaled;
  for (size_t i = 0; i < model_params_.size(); ++i) {
    if (!model_params_[i].grad().defined()) continue;
    at::Tensor& master_grad = masters_[i].mutable_grad();
    master_grad = new_master_grad(i);
    scaled.push_back(in_layout_of(model_params_[i].grad(), master_grad));
    unscaled.push_back(master_grad);
  }
  for (const auto& param : native_params_) {
    if (!param.grad().defined()) continue;
    scaled.push_back(param.grad());
    unscaled.push_back(param.grad());
  }
  if (!scaled.empty()) {
    kernels::multi_tensor_scale(unread_flag(scaled.front()), scaled, unscaled, fused_order_.grad_scale());
  }
  remember_model_grads();
  fused_order_.reset();
  materialized_ = true;
}

std::vector<at::Tensor> OptimizerStash::grads_of_groups() {
  std::vector<at::Tensor> grads;
  for (const auto& group : handle()->param_groups()) {
    for (const auto& param : group.params()) {
      if (param.grad().defined()) grads.push_back(param.grad());
    }
  }
  return grads;
}

double OptimizerStash::clip_grad_norm(double max_norm) {
  // torch::nn::utils::clip_grad_norm_'s coefficient.
  const auto coefficient = [&](double norm) { return std::isfinite(norm) ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0; };
  if (fused_order_.pending()) {
    const double norm = fused_order_.grad_norm(model_params_, native_params_);
    fused_order_.clip_by(coefficient(norm));
    return result.grad_norm = norm;
  }
  const std::vector<at::Tensor> grads = grads_of_groups();
  if (grads.empty()) return result.grad_norm = 0.0;
  const at::NoGradGuard no_grad;
  const at::Tensor flag = unread_flag(grads.front());
  const double norm = std::get<0>(kernels::multi_tensor_l2norm(flag, grads, /*per_tensor=*/false)).item<float>();
  if (coefficient(norm) < 1.0) kernels::multi_tensor_scale(flag, grads, grads, coefficient(norm));
  return result.grad_norm = norm;
}

// ---- misuse ----

void OptimizerStash::throw_kept_error() {
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

void OptimizerStash::check_in_use() {
  left_behind_->check();
  TORCH_CHECK(adopted_.empty() || !handle()->param_groups().empty(),
              "The parameters of this optimizer handle were moved into another optimizer. Keep the handle that "
              "amp::initialize returned and move it only into another handle.");
}

const std::shared_ptr<OptimizerStash>& require_stash(torch::optim::Optimizer& optimizer, const char* caller) {
  auto* handle = dynamic_cast<AmpOptimizerBase*>(&optimizer);
  TORCH_CHECK(handle || current_session(), "amp::", caller,
              " was called before amp::initialize. Call amp::initialize and pass the optimizer that it returns.");
  TORCH_CHECK(handle, "amp::", caller,
              " was given an optimizer that amp::initialize did not return. Pass the handle from "
              "`auto [net, opt] = amp::initialize(model, optimizer, …)`, not the original optimizer.");
  TORCH_CHECK(handle->stash(), "amp::", caller,
              " was given an optimizer handle that was moved from. Pass the handle it was moved into.");
  return handle->stash();
}

}  // namespace apex::amp::detail
