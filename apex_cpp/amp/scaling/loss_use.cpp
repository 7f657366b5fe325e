#include <apex_cpp/amp/scaling/loss_use.h>

#include <c10/util/Exception.h>

namespace apex::amp::detail {
namespace {

constexpr const char* kRemedy =
    " Differentiate what amp::scale_loss returns: { auto scaled_loss = amp::scale_loss(loss, optimizer); "
    "scaled_loss.backward(); }";

}  // namespace

// A scaled loss carries the gradient on to the loss, so that the loss's own hook alone does not tell which was meant.
LossUse::LossUse(const at::Tensor& loss, const at::Tensor& scaled) {
  if (!loss.requires_grad() || !scaled.requires_grad()) return;
  loss_ = loss;
  seen_ = std::make_shared<Seen>();
  hook_ = loss_.register_hook([seen = seen_](const at::Tensor&) { seen->loss = true; });
  scaled.register_hook([seen = seen_](const at::Tensor&) { seen->scaled = true; });
}

void LossUse::check(bool has_grads) const {
  if (!seen_ || seen_->scaled) return;
  TORCH_CHECK(!seen_->loss,
              "In a scale_loss block the loss itself was differentiated, and not the scaled loss: its gradients lack the loss "
              "scale that the end of the block takes out of them.",
              kRemedy);
  TORCH_CHECK(
      has_grads,
      "A scale_loss block ended without a backward pass: its scaled loss was never differentiated, and no parameter of its "
      "optimizers got a gradient.",
      kRemedy, " To leave a batch out, look at its loss before the block.");
}

void LossUse::stop() {
  if (loss_.defined()) loss_.remove_hook(hook_);
  loss_.reset();
}

}  // namespace apex::amp::detail
