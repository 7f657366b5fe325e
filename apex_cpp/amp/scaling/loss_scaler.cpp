#include <apex_cpp/amp/scaling/loss_scaler.h>

#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/files/csv.h>
#include <apex_cpp/torch_compat/autograd.h>
#include "kernels/capture.h"
#include "kernels/multi_tensor.h"
#include "opt_levels/resolve.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <ostream>
#include <sstream>
#include <string>

namespace apex::amp {

const char* name_of(ScaleChange change) {
  switch (change) {
    case ScaleChange::overflow:
      return "overflow";
    case ScaleChange::growth:
      return "growth";
    case ScaleChange::restored:
      return "restored";
  }
  return "";
}

void ScaleHistory::set_capacity(size_t events) {
  capacity_ = events;
  while (events_.size() > capacity_) events_.pop_front();
}

void ScaleHistory::add(const ScaleEvent& event) {
  events_.push_back(event);
  if (events_.size() > capacity_) events_.pop_front();
}

void ScaleHistory::write_csv(std::ostream& out) const {
  std::string text = "update,scale_before,scale_after,skipped,reason\n";
  for (const auto& event : events_) {
    text += csv_row(event.update, event.before, event.after, event.skipped(), name_of(event.change));
  }
  out << text;
}

namespace {

bool same_tensors(at::TensorList a, at::TensorList b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

}  // namespace

LossScaler::LossScaler(LossScale loss_scale, std::optional<double> min_loss_scale, double max_loss_scale, bool skip_nonfinite)
    : dynamic_(loss_scale.dynamic),
      checks_overflow_(loss_scale.dynamic || skip_nonfinite),
      scale_(loss_scale.dynamic ? std::min(max_loss_scale, kInitScale) : loss_scale.value),
      min_loss_scale_(min_loss_scale.value_or(0.0)),
      max_loss_scale_(max_loss_scale) {}

void LossScaler::set_scale_window(int64_t updates) {
  TORCH_CHECK_VALUE(updates > 0, "LossScaler: scale_window must be at least 1 update, got ", updates);
  scale_window_ = updates;
}

void LossScaler::set_skip_warning(int64_t skips) {
  TORCH_CHECK_VALUE(skips >= 0, "LossScaler: skip_warning must be 0 or a number of skipped steps, got ", skips);
  skip_warning_ = skips;
}

void LossScaler::restore(double loss_scale, int64_t unskipped) {
  TORCH_CHECK_VALUE(opt_levels::is_usable_scale(loss_scale),
                    "LossScaler: a loss scale must be positive and finite in float32, from 1.2e-38 to 3.4e38, got ",
                    loss_scale);
  TORCH_CHECK_VALUE(unskipped >= 0, "LossScaler: the count of clean updates must not be negative, got ", unskipped);
  move_to(loss_scale, ScaleChange::restored);
  unskipped_ = unskipped;
  skipped_in_a_row_ = 0;
}

void LossScaler::clear_overflow_state() {
  if (found_inf_.defined()) found_inf_.zero_();
}

const at::Tensor& LossScaler::found_inf(at::TensorList grads) {
  // Use the gradients' device: the current device may differ.
  if (!found_inf_.defined()) found_inf_ = at::zeros({1}, grads[0].options().dtype(at::kInt));
  return found_inf_;
}

void LossScaler::unscale(at::TensorList model_grads, at::TensorList master_grads) {
  if (!dynamic_ && scale_ == 1.0 && same_tensors(model_grads, master_grads)) return find_nonfinite(model_grads);
  scale(model_grads, master_grads, 1.0 / scale_);
}

void LossScaler::unscale_with_stashed(at::TensorList model_grads, at::TensorList stashed_grads, at::TensorList master_grads) {
  axpby(model_grads, stashed_grads, master_grads, 1.0 / scale_, 1.0);
}

void LossScaler::scale(at::TensorList in, at::TensorList out, double factor) {
  if (in.empty()) return;
  kernels::multi_tensor_scale(found_inf(in), in, out, factor);
  check_products(out, factor);
}

void LossScaler::axpby(at::TensorList x, at::TensorList y, at::TensorList out, double a, double b) {
  if (x.empty()) return;
  kernels::multi_tensor_axpby(found_inf(x), x, y, out, a, b, kernels::CheckArg::x);
  check_products(out, a);
}

void LossScaler::find_nonfinite(at::TensorList tensors) {
  if (checks_overflow_ && !tensors.empty()) kernels::multi_tensor_maxnorm(found_inf(tensors), tensors, /*per_tensor=*/false);
}

// The kernels check the values they read. Products of finite values can overflow only if factor > 1 (a loss scale below 1).
void LossScaler::check_products(at::TensorList products, double factor) {
  if (factor > 1) find_nonfinite(products);
}

void LossScaler::check_sums(at::TensorList sums, at::TensorList earlier) {
  std::vector<at::Tensor> narrow, narrow_earlier;
  for (size_t i = 0; i < sums.size() && checks_overflow_; ++i) {
    if (!detail::is_low_precision(sums[i].scalar_type())) continue;
    narrow.push_back(sums[i]);
    narrow_earlier.push_back(earlier[i]);
  }
  if (narrow.empty()) return;
  const at::Tensor& found = found_inf(narrow);
  if (!in_sums_.defined() || in_sums_.device() != found.device())
    in_sums_ = at::empty_like(found), in_earlier_ = at::empty_like(found);
  kernels::multi_tensor_check_finite(in_sums_.zero_(), narrow);
  if (in_sums_.is_cpu() && in_sums_.item<int>() == 0) return;  // a GPU's host would have to wait
  kernels::multi_tensor_check_finite(in_earlier_.zero_(), narrow_earlier);
  found_inf_.add_(in_sums_.sub_(in_earlier_).clamp_min_(0));  // each was 0 or 1
}

at::Tensor LossScaler::check(at::TensorList grads) {
  if (grads.empty() || !checks_overflow_) return {};
  return detail::scaled_norm(grads, 1.0 / scale_, found_inf(grads));
}

double LossScaler::backed_off() const {
  if (!dynamic_) return scale_;
  const double halved = scale_ / kScaleFactor;
  const double scale = min_loss_scale_ > 0 ? std::max(min_loss_scale_, halved) : halved;
  TORCH_CHECK(scale >= std::numeric_limits<float>::min(), "Gradient overflow at every loss scale down to ", scale_,
              " (its history: ", describe_history(),
              "): the gradients are Inf or NaN whatever the scale. Look for a loss or an activation that is not finite; set "
              "min_loss_scale as a lower bound of the scale.");
  return scale;
}

void LossScaler::move_to(double scale, ScaleChange change) {
  history_.add({updates_, scale_, scale, change});
  scale_ = scale;
}

std::string LossScaler::describe_history() const {
  constexpr size_t kShown = 12;
  const auto& events = history_.events();
  const size_t first = events.size() > kShown ? events.size() - kShown : 0;
  std::ostringstream text;
  if (first > 0) text << "... ";
  text << (events.empty() ? scale_ : events[first].before);
  for (size_t i = first; i < events.size(); ++i) text << " -> " << events[i].after;
  return text.str();
}

bool LossScaler::overflow_found() const { return checks_overflow_ && found_inf_.defined() && found_inf_.item<int>() != 0; }

bool LossScaler::update_scale(bool overflow) {
  if (overflow && checks_overflow_) {
    const double scale = backed_off();
    ++updates_, ++overflows_, ++skipped_in_a_row_;
    move_to(scale, ScaleChange::overflow);
    unskipped_ = 0;
    return true;
  }
  ++updates_, ++unskipped_;
  skipped_in_a_row_ = 0;
  // The count exceeds the window after `restore` or a shorter window. Apex compares for equality; its scale would then not grow
  // until the next overflow.
  if (dynamic_ && unskipped_ >= scale_window_) {
    move_to(std::min(max_loss_scale_, scale_ * kScaleFactor), ScaleChange::growth);
    unskipped_ = 0;
  }
  return false;
}

}  // namespace apex::amp

namespace apex::amp::detail {

void check_capture(const LossScaler& scaler, const char* caller, c10::Device device) {
  TORCH_CHECK(
      !scaler.checks_overflow() || !kernels::is_captured(device), caller,
      " was called during the capture of a CUDA graph, with a dynamic loss scale or skip_nonfinite. After each backward pass "
      "the host decides on the scale and on whether to step, and a graph would replay the present decision. Give "
      "amp::initialize a fixed loss_scale without skip_nonfinite, or leave scale_loss and step outside of the graph.");
}

void check_float8_capture(const char* caller, c10::Device device) {
  TORCH_CHECK(!kernels::is_captured(device), caller,
              " was called during the capture of a CUDA graph, with fp8 delayed: each pass has scales of its own, and a graph "
              "would replay the present ones. Use fp8 current, or leave scale_loss and forward outside of the graph.");
}

namespace {

constexpr const char* kScaledLossRemedy =
    " Differentiate what amp::scale_loss returns: { auto scaled_loss = amp::scale_loss(loss, optimizer); "
    "scaled_loss.backward(); }";

}  // namespace

// Differentiating the scaled loss also runs the loss's hook, so both hooks are needed to tell which one was differentiated.
BackwardWatcher::BackwardWatcher(const at::Tensor& loss, const at::Tensor& scaled) {
  if (!loss.requires_grad() || !scaled.requires_grad()) return;
  loss_ = loss;
  seen_ = std::make_shared<Seen>();
  seen_->grad_fn = loss.grad_fn();
  hook_ = loss_.register_hook([seen = seen_](const at::Tensor&) { seen->loss = true; });
  scaled.register_hook([seen = seen_](const at::Tensor&) { seen->scaled = true; });
}

void BackwardWatcher::check(bool has_grads) const {
  if (!seen_ || seen_->scaled) return;
  TORCH_CHECK(!seen_->loss,
              "In a scale_loss block the loss itself was differentiated, and not the scaled loss: its gradients lack the loss "
              "scale by which the end of the block divides them.",
              kScaledLossRemedy);
  TORCH_CHECK(
      has_grads,
      "A scale_loss block ended without a backward pass: its scaled loss was never differentiated, and no parameter of its "
      "optimizers got a gradient.",
      kScaledLossRemedy, " To skip a batch, check its loss before the block.");
}

void BackwardWatcher::stop() {
  // A write in place gives the loss another grad_fn, and its hooks stay with the old one. grad_fn() would make that of a view.
  if (loss_.defined() && torch_compat::autograd_meta(loss_)->grad_fn_ == seen_->grad_fn.lock()) loss_.remove_hook(hook_);
  loss_.reset();
}

}  // namespace apex::amp::detail
