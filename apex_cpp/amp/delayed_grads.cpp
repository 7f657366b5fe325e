#include <apex_cpp/amp/delayed_grads.h>

#include <apex_cpp/amp/grad_kernels.h>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {

void DelayedGrads::enter(const std::vector<at::Tensor>& params) {
  aside_.clear();
  for (const auto& param : params) aside_.emplace_back(param, std::exchange(param.mutable_grad(), at::Tensor()));
}

void DelayedGrads::exit(double scale) {
  const double factor = scale / scale_;
  std::vector<at::Tensor> older, grads, stashed;
  for (const auto& [param, stash] : std::exchange(aside_, {})) {
    if (!stash.defined()) continue;
    at::Tensor& grad = param.mutable_grad();
    if (!grad.defined()) {
      grad = dense(stash);
      older.push_back(grad);
      continue;
    }
    grad = dense(grad);
    grads.push_back(grad);
    stashed.push_back(in_layout_of(stash, grad));
  }
  if (!older.empty() && factor != 1) kernels::multi_tensor_scale(unread_flag(older.front()), older, older, factor);
  // Overflow of either side stays in the sums, where unscaling finds it.
  if (!grads.empty()) {
    kernels::multi_tensor_axpby(unread_flag(grads.front()), grads, stashed, grads, 1.0, factor, kernels::CheckArg::both);
  }
}

void DelayedGrads::abandon() {
  for (auto& [param, stash] : std::exchange(aside_, {})) param.mutable_grad() = stash;
}

void DelayedGrads::wait(double scale) {
  waiting_ = true;
  scale_ = scale;
}

void DelayedGrads::reset() {
  waiting_ = false;
  aside_.clear();
}

}  // namespace apex::amp::detail
