#include <apex_cpp/amp/tensors/gradients.h>

#include <apex_cpp/amp/tensors/tensor_version.h>
#include "kernels/multi_tensor.h"
#include "kernels/plan/reuse.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/any.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>

namespace apex::amp::detail {

bool fits(const at::Tensor& grad, const at::Tensor& param) {
  return grad.sizes() == param.sizes() && grad.device() == param.device();
}

bool is_writable(const at::Tensor& tensor) {
  return (!tensor.is_inference() || c10::InferenceMode::is_enabled()) &&
         (tensor.layout() != at::kStrided || at::has_internal_overlap(tensor) != at::MemOverlap::Yes);
}

at::Tensor dense(const at::Tensor& grad) {
  if (grad.is_neg()) return grad.resolve_neg();
  return grad.is_non_overlapping_and_dense() ? grad : grad.contiguous();
}

at::Tensor in_layout_of(const at::Tensor& tensor, const at::Tensor& like) {
  const bool fits = tensor.strides() == like.strides() && !tensor.is_neg();
  return fits ? tensor : at::empty_like(like, tensor.options()).copy_(tensor);
}

void PassGrads::add(const at::Tensor& param, const at::Tensor& stash) {
  at::Tensor& grad = param.mutable_grad();
  if (!grad.defined()) {
    grad = stash.defined() && stash.is_neg() ? stash.resolve_neg() : stash;
    if (stash.defined()) older.push_back(grad);
    return;
  }
  grad = dense(grad);
  if (!stash.defined()) return fresh.push_back(grad);
  again.push_back(grad);
  stashed.push_back(in_layout_of(stash, grad));
}

namespace {

/// The address range of a parameter's gradient.
struct Span {
  const char* begin;
  const char* end;
  at::Tensor param;
};

Span span_of(const at::Tensor& param) {
  const at::Tensor& grad = param.grad();
  int64_t last = 0;
  for (int64_t dim = 0; dim < grad.dim(); ++dim) last += (grad.size(dim) - 1) * grad.stride(dim);
  const char* begin = static_cast<const char*>(grad.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<int64_t>(grad.element_size()), param};
}

bool is_shared_grad(const at::Tensor& grad) {
  if (!grad.defined() || grad.layout() != at::kStrided || grad.numel() == 0 || grad.is_meta()) return false;
  return grad.use_count() > 1 || grad.storage().use_count() > 1;
}

}  // namespace

void OverlappingGrads::add(at::TensorList params) {
  for (const at::Tensor& param : params) {
    if (is_shared_grad(param.grad())) shared_.push_back(param);
  }
}

// Address ranges of different devices do not overlap.
void OverlappingGrads::separate() {
  const auto params = std::exchange(shared_, {});
  if (params.size() < 2) return;
  std::vector<Span> spans;
  for (const at::Tensor& param : params) spans.push_back(span_of(param));
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return std::less<>()(a.begin, b.begin); });
  const Span* last = &spans.front();
  for (const Span& span : spans) {
    if (std::less_equal<>()(last->end, span.begin)) {
      last = &span;
    } else if (!span.param.is_same(last->param)) {
      span.param.mutable_grad() = span.param.grad().detach().clone();
    }
  }
}

void separate_grads(at::TensorList params) {
  OverlappingGrads grads;
  grads.add(params);
  grads.separate();
}

at::Tensor unread_flag(const at::Tensor& like) { return at::zeros({1}, like.options().dtype(at::kInt).requires_grad(false)); }

void scale_all(const std::vector<at::Tensor>& grads, double factor) {
  if (factor != 1 && !grads.empty()) kernels::multi_tensor_scale(unread_flag(grads.front()), grads, grads, factor);
}

at::Tensor scaled_norm(at::TensorList grads, double factor, const at::Tensor& found_inf) {
  const at::Tensor on_device = at::full({1}, factor, grads[0].options().dtype(at::kFloat).requires_grad(false));
  return std::get<0>(kernels::multi_tensor_unscale_l2norm(found_inf, grads, on_device, /*per_tensor=*/false));
}

bool has_nonzero(const at::Tensor& grad) { return grad.defined() && (grad.is_sparse() || at::any(grad).item<bool>()); }

bool any_nonzero(const std::vector<at::Tensor>& grads) {
  std::vector<at::Tensor> on_gpus;
  for (const at::Tensor& grad : grads) {
    if (!grad.defined()) continue;
    if (grad.is_sparse() || !grad.is_cuda()) {
      if (has_nonzero(grad)) return true;
    } else {
      const at::Tensor flag = at::any(grad);
      on_gpus.push_back(on_gpus.empty() ? flag : flag.to(on_gpus.front().device(), /*non_blocking=*/true));
    }
  }
  return !on_gpus.empty() && at::any(at::stack(on_gpus)).item<bool>();
}

void clear_grad(const at::Tensor& param, bool set_to_none) {
  at::Tensor& grad = param.mutable_grad();
  if (!grad.defined()) return;
  if (set_to_none) {
    grad.reset();
  } else {
    grad = grad.detach();
    grad.zero_();
  }
}

void forget_kernel_calls() { kernels::plan::forget_calls(); }

namespace {

struct SyncOfParam {
  const GradSync* address;
  std::weak_ptr<GradSync> sync;
};

struct SyncedParams {
  std::mutex mutex;
  WeakTensorMap<SyncOfParam> syncs;
  std::atomic<size_t> count{0};
};

SyncedParams& synced_params() {
  static SyncedParams instance;
  return instance;
}

std::atomic<int> unreduced_syncs{0};

}  // namespace

bool GradSync::any_is_unreduced() { return unreduced_syncs > 0; }

void GradSync::set_unreduced(bool unreduced) {
  if (unreduced_.exchange(unreduced) != unreduced) unreduced_syncs += unreduced ? 1 : -1;
}

void set_grad_sync(const std::vector<at::Tensor>& params, const std::shared_ptr<GradSync>& sync) {
  auto& synced = synced_params();
  const std::lock_guard<std::mutex> lock(synced.mutex);
  for (const at::Tensor& param : params) synced.syncs.set(param, SyncOfParam{sync.get(), sync});
  synced.count = synced.syncs.size();
}

void drop_grad_sync(const std::vector<at::Tensor>& params, const GradSync& sync) {
  auto& synced = synced_params();
  const std::lock_guard<std::mutex> lock(synced.mutex);
  for (const at::Tensor& param : params) {
    const SyncOfParam* found = synced.syncs.find(param);
    if (found && found->address == &sync) synced.syncs.erase(param);
  }
  synced.count = synced.syncs.size();
}

std::shared_ptr<GradSync> grad_sync_of(const at::Tensor& param) {
  auto& synced = synced_params();
  if (synced.count == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(synced.mutex);
  const SyncOfParam* found = synced.syncs.find(param);
  return found ? found->sync.lock() : nullptr;
}

bool is_unreduced(const at::Tensor& param) {
  if (!GradSync::any_is_unreduced()) return false;
  const auto sync = grad_sync_of(param);
  return sync && sync->is_unreduced();
}

bool has_unreduced_grad(const at::Tensor& param) { return param.grad().defined() && is_unreduced(param); }

}  // namespace apex::amp::detail
