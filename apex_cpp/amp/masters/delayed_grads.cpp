#include <apex_cpp/amp/masters/delayed_grads.h>

#include <apex_cpp/amp/tensors/grad_kernels.h>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {

void DelayedGrads::enter(const std::vector<at::Tensor>& params) {
  aside_.clear();
  for (const auto& param : params) aside_.emplace_back(param, std::exchange(param.mutable_grad(), at::Tensor()));
}

void DelayedGrads::exit(double scale) {
  const double factor = scale / scale_;
  PassGrads grads;
  for (const auto& [param, stash] : std::exchange(aside_, {})) {
    if (stash.defined()) grads.add(param, dense(stash));
  }
  if (factor != 1 && !grads.older.empty()) {
    kernels::multi_tensor_scale(unread_flag(grads.older.front()), grads.older, grads.older, factor);
  }
  // Overflow of either side stays in the sums, where unscaling finds it.
  if (!grads.again.empty()) {
    kernels::multi_tensor_axpby(unread_flag(grads.again.front()), grads.again, grads.stashed, grads.again, 1.0, factor,
                                kernels::CheckArg::both);
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
