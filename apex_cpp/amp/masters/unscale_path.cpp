#include <apex_cpp/amp/masters/unscale_path.h>

#include <apex_cpp/amp/tensors/gradients.h>
#include "kernels/moved_to.h"
#include "kernels/multi_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace apex::amp::detail {
namespace {

// The norm of torch::nn::utils::clip_grad_norm_, with the same order of summation.
at::Tensor torchs_norm(const std::vector<at::Tensor>& grads) {
  std::vector<at::Tensor> norms = at::_foreach_norm(grads, 2.0);
  const c10::Device device = grads.front().device();
  for (at::Tensor& norm : norms) norm = kernels::moved_to(device, norm);
  return norms.size() == 1 ? norms.front() : at::norm(at::stack(norms), 2.0);
}

bool are_float32(const std::vector<at::Tensor>& grads) {
  return std::all_of(grads.begin(), grads.end(), [](const at::Tensor& grad) { return grad.scalar_type() == at::kFloat; });
}

}  // namespace

double clip_coefficient(double norm, double max_norm) {
  if (!std::isfinite(norm)) return 1.0;
  return std::min(1.0f, static_cast<float>(max_norm) / (static_cast<float>(norm) + static_cast<float>(kClipEpsilon)));
}

double clip_in_place(const std::vector<at::Tensor>& grads, double max_norm) {
  if (grads.empty()) return 0.0;
  const at::NoGradGuard no_grad;
  const at::Tensor flag = unread_flag(grads.front());
  const at::Tensor total =
      are_float32(grads) ? torchs_norm(grads) : std::get<0>(kernels::multi_tensor_l2norm(flag, grads, /*per_tensor=*/false));
  const double norm = total.item<float>();
  const double coefficient = clip_coefficient(norm, max_norm);
  if (coefficient < 1.0) kernels::multi_tensor_scale(flag, grads, grads, coefficient);
  return norm;
}

void FusedUnscale::enter() {
  for (TrainedParam* each : table_.all()) {
    const at::Tensor grad = std::exchange(each->param.mutable_grad(), at::Tensor());
    const bool used = each->has_master() && !pending_;
    each->earlier_grads.finished = used ? at::Tensor() : grad;
  }
}

void FusedUnscale::exit(LossScaler& scaler) {
  const double incoming = scaler.loss_scale();
  const double out = pending_ ? std::min(incoming, scale_) : incoming;
  PassGrads grads;
  for (TrainedParam* each : table_.all()) grads.add(each->param, std::exchange(each->earlier_grads.finished, at::Tensor()));
  norm_.reset();
  const bool all_fresh = grads.older.empty() && grads.again.empty();
  if (incoming != out) {
    scaler.scale(grads.fresh, grads.fresh, out / incoming);
  } else if (const at::Tensor norm = scaler.check(grads.fresh); all_fresh) {
    norm_ = norm;
  }
  // Clipping applies only to gradients that existed when the program clipped, so it goes into the stashed gradients here.
  const double of_stashed = clip_ * out / scale_;
  scaler.axpby(grads.again, grads.stashed, grads.again, out / incoming, of_stashed);
  scaler.check_sums(grads.again, grads.stashed);
  scale_all(grads.older, of_stashed);  // BWD-31
  clip_ = 1.0;
  scale_ = out;
  pending_ = true;
  num_params_ = table_.all().size();
  for (TrainedParam* each : table_.all()) each->last_grads.model = GradSnapshot(each->param.grad());
}

void FusedUnscale::abandon() {
  for (TrainedParam* each : table_.all())
    each->param.mutable_grad() = std::exchange(each->earlier_grads.finished, at::Tensor());
}

// Whether the program has dropped or written a gradient, or taken a parameter out, since the pass.
bool FusedUnscale::were_grads_changed() const {
  const auto params = table_.all();
  return params.size() != num_params_ || std::any_of(params.begin(), params.end(), [](const TrainedParam* each) {
           const at::Tensor& grad = each->param.grad();
           const GradSnapshot& last = each->last_grads.model;
           return last.defined() != grad.defined() || (grad.defined() && !last.matches(grad));
         });
}

double FusedUnscale::grad_norm() {
  if (were_grads_changed()) norm_.reset();
  if (!norm_.defined()) {
    std::vector<at::Tensor> grads;
    for (const TrainedParam* each : table_.all()) {
      if (each->param.grad().defined()) grads.push_back(each->param.grad());
    }
    if (grads.empty()) return 0.0;
    norm_ = scaled_norm(grads, 1.0 / scale_, unread_flag(grads.front()));
  }
  return norm_.item<float>() * clip_;
}

double FusedUnscale::clip(double max_norm) {
  const double norm = grad_norm();
  clip_ *= clip_coefficient(norm, max_norm);
  return norm;
}

void FusedUnscale::unscale() {
  std::vector<at::Tensor> scaled, unscaled;
  for (TrainedParam* each : table_.all()) {
    const at::Tensor& grad = each->param.grad();
    if (!grad.defined()) continue;
    if (each->has_master()) each->master.mutable_grad() = each->new_master_grad();
    unscaled.push_back(each->stepped().grad());
    scaled.push_back(in_layout_of(grad, unscaled.back()));
  }
  if (!scaled.empty()) kernels::multi_tensor_scale(unread_flag(scaled.front()), scaled, unscaled, grad_scale());
  reset();
}

void FusedUnscale::settle() {
  if (pending_ || grad_scale() == 1.0) return;
  const auto native = table_.native();
  const auto is_left = [](const TrainedParam* each) { return each->last_grads.model.same_memory(each->param.grad()); };
  if (std::none_of(native.begin(), native.end(), is_left)) reset();
}

void FusedUnscale::reset() {
  norm_.reset();
  scale_ = clip_ = 1.0;
  pending_ = false;
}

void MaterializedUnscale::enter() {
  for (TrainedParam* each : table_.with_masters()) each->param.mutable_grad().reset();
  for (TrainedParam* each : table_.native())
    each->earlier_grads.finished = std::exchange(each->param.mutable_grad(), at::Tensor());
}

bool MaterializedUnscale::model_has_grads() const {
  std::vector<at::Tensor> grads;
  for (const TrainedParam* each : table_.all()) grads.push_back(each->param.grad());
  return any_nonzero(grads);
}

// Zeroed gradients stay defined: an optimizer with momentum steps by them. Keeps gradients that the program put into masters.
void MaterializedUnscale::follow_model() {
  bool any_dropped = false;
  for (TrainedParam* each : table_.with_masters()) {
    at::Tensor& master_grad = each->master.mutable_grad();
    const at::Tensor& grad = each->param.grad();
    const bool is_from_model = master_grad.defined() && each->last_grads.master.same_memory(master_grad);
    if (!is_from_model || !each->last_grads.model.was_dropped(grad)) continue;
    grad.defined() ? master_grad.zero_() : master_grad = at::Tensor();
    each->last_grads.model = GradSnapshot(grad);
    any_dropped = true;
  }
  if (!any_dropped || model_has_grads()) return;
  for (TrainedParam* each : table_.with_masters()) {
    if (!each->last_grads.model.defined() && each->last_grads.master.same_memory(each->master.grad())) each->drop_master_grad();
  }
}

void MaterializedUnscale::exit(LossScaler& scaler) {
  unscale_into_masters(scaler);
  unscale_native(scaler);
  record_grads();
}

void MaterializedUnscale::unscale_into_masters(LossScaler& scaler) {
  std::vector<at::Tensor> fresh, fresh_masters, again, again_masters;
  for (TrainedParam* each : table_.with_masters()) {
    const at::Tensor& grad = each->param.grad();
    if (!grad.defined()) continue;
    at::Tensor& master_grad = each->master.mutable_grad();
    const bool accumulates = master_grad.defined();
    if (!accumulates) master_grad = each->new_master_grad();
    (accumulates ? again : fresh).push_back(in_layout_of(grad, master_grad));
    (accumulates ? again_masters : fresh_masters).push_back(master_grad);
  }
  scaler.unscale(fresh, fresh_masters);
  scaler.unscale_with_stashed(again, again_masters, again_masters);
}

void MaterializedUnscale::unscale_native(LossScaler& scaler) {
  PassGrads grads;
  for (TrainedParam* each : table_.native()) grads.add(each->param, std::exchange(each->earlier_grads.finished, at::Tensor()));
  scaler.unscale(grads.fresh, grads.fresh);
  scaler.unscale_with_stashed(grads.again, grads.stashed, grads.again);
}

void MaterializedUnscale::record_grads() {
  for (TrainedParam* each : table_.with_masters()) {
    each->last_grads.model = GradSnapshot(each->param.grad());
    each->last_grads.master = TensorVersion(each->master.grad());
  }
}

void MaterializedUnscale::abandon() {
  for (TrainedParam* each : table_.with_masters()) {
    each->param.mutable_grad().reset();
    each->last_grads.model = {};
  }
  for (TrainedParam* each : table_.native())
    each->param.mutable_grad() = std::exchange(each->earlier_grads.finished, at::Tensor());
  try {
    show_earlier_grads();
  } catch (const std::exception&) {  // no memory: the model's zero_grad drops what the other parameters show
  }
}

// The model's zero_grad cannot drop an absent gradient, so zeros stand for the gradient of earlier passes that a master keeps.
void MaterializedUnscale::show_earlier_grads() {
  const at::NoGradGuard no_grad;
  for (TrainedParam* each : table_.with_masters()) {
    const at::Tensor& master_grad = each->master.grad();
    if (!master_grad.defined() || !each->last_grads.master.same_memory(master_grad) || is_unreduced(each->param)) continue;
    each->param.mutable_grad() = at::zeros_like(each->param);
    each->last_grads.model = GradSnapshot(each->param.grad());
  }
}

void ShardedUnscale::begin(std::shared_ptr<GradShards> shards, bool held, const LossScaler& scaler) {
  shards_ = std::move(shards);
  shards_->begin_pass(held, scaler.checks_overflow());
}

void ShardedUnscale::exit(LossScaler& scaler) {
  shards_->end_pass(scaler.loss_scale());
  if (scaler.checks_overflow() && shards_->pass_overflowed()) scaler.check({shards_->norm()});
}

void ShardedUnscale::drop() {
  if (shards_) shards_->drop();
}

void DelayedUnscale::enter() {
  std::vector<at::Tensor> kept;
  for (TrainedParam* each : table_.all()) {
    at::Tensor& grad = each->param.mutable_grad();
    if (!grad.defined()) continue;
    if (is_unreduced(each->param)) {
      kept.push_back(grad = dense(grad));
    } else {
      each->earlier_grads.delayed = std::exchange(grad, at::Tensor());
    }
  }
  const at::NoGradGuard no_grad;
  scale_all(kept, next_scale_ / scale_);
}

// Reduced gradients stay removed during passes within no_sync: a second reduction would count them once for each rank. Sparse
// gradients are rejected at the end of the block.
void DelayedUnscale::join(double scale) {
  const auto params = table_.all();
  const bool is_within_no_sync =
      std::any_of(params.begin(), params.end(), [](const TrainedParam* each) { return has_unreduced_grad(each->param); });
  PassGrads grads;
  for (TrainedParam* each : params) {
    at::Tensor& grad = each->param.mutable_grad();
    const bool stays = (is_within_no_sync && is_unreduced(each->param)) || (grad.defined() && grad.is_sparse());
    EarlierGrads& earlier = each->earlier_grads;
    if (stays || !earlier.delayed.defined()) continue;
    earlier.joined = dense(std::exchange(earlier.delayed, at::Tensor()));
    grads.add(each->param, grad.defined() ? earlier.joined : earlier.joined.clone());
  }
  scale_all(grads.older, scale / scale_);
  // Inf and NaN of either side stay in the sums, and unscaling finds them.
  if (!grads.again.empty()) {
    kernels::multi_tensor_axpby(unread_flag(grads.again.front()), grads.again, grads.stashed, grads.again, 1.0, scale / scale_,
                                kernels::CheckArg::both);
  }
}

void DelayedUnscale::exit(LossScaler& scaler) {
  join(scaler.loss_scale());
  std::vector<at::Tensor> still_delayed;
  for (TrainedParam* each : table_.all()) {
    EarlierGrads& earlier = each->earlier_grads;
    earlier.joined.reset();
    if (earlier.delayed.defined()) still_delayed.push_back(earlier.delayed = dense(earlier.delayed));
  }
  scale_all(still_delayed, scaler.loss_scale() / scale_);
}

void DelayedUnscale::abandon() {
  for (TrainedParam* each : table_.all()) {
    EarlierGrads& earlier = each->earlier_grads;
    at::Tensor& grad = earlier.joined.defined() ? earlier.joined : earlier.delayed;
    each->param.mutable_grad() = std::exchange(grad, at::Tensor());
  }
}

}  // namespace apex::amp::detail
