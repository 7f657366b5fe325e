#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include <apex_cpp/amp/scaling/loss_scaler.h>

namespace apex::amp {

namespace detail {
class OptimizerStash;
struct Session;
}  // namespace detail

class LossScaler;

/// Options of `amp::scale_loss`, under Apex's names.
class ScaleLossOptions {
 public:
  /* implicit */ ScaleLossOptions(int64_t loss_id = 0) : loss_id_(loss_id) {}

  /// The loss scaler to use, in [0, num_losses).
  ScaleLossOptions& loss_id(int64_t id) { return loss_id_ = id, *this; }
  int64_t loss_id() const { return loss_id_; }
  /// Leaves the gradients scaled in the model's parameters at the end of the block. A later pass adds its own and unscales the
  /// sums. If the scale has changed by then, the earlier gradients are converted to the new scale (Apex mixes the scales:
  /// SL-09). A `step` without a later pass is an error.
  ScaleLossOptions& delay_unscale(bool on) { return delay_unscale_ = on, *this; }
  bool delay_unscale() const { return delay_unscale_; }
  /// This block neither changes the loss scale nor skips a step.
  ScaleLossOptions& delay_overflow_check(bool on) { return delay_overflow_check_ = on, *this; }
  bool delay_overflow_check() const { return delay_overflow_check_; }

 private:
  int64_t loss_id_;
  bool delay_unscale_ = false;
  bool delay_overflow_check_ = false;
};

/// One or several optimizer handles, in any of these forms: `opt`, `{opt_a, opt_b}`, `std::tie(a, b)`,
/// pointers, smart pointers, or vectors of these.
class OptimizerList {
 public:
  using Optimizer = torch::optim::Optimizer;

  /* implicit */ OptimizerList(Optimizer& optimizer) : list_{&optimizer} {}
  /* implicit */ OptimizerList(std::initializer_list<std::reference_wrapper<Optimizer>> optimizers) {
    for (auto& optimizer : optimizers) add(optimizer);
  }
  template <class Opt, class = std::enable_if_t<std::is_base_of_v<Optimizer, Opt>>>
  /* implicit */ OptimizerList(const std::unique_ptr<Opt>& optimizer) {
    add(optimizer);
  }
  template <class Opt, class = std::enable_if_t<std::is_base_of_v<Optimizer, Opt>>>
  /* implicit */ OptimizerList(const std::shared_ptr<Opt>& optimizer) {
    add(optimizer);
  }
  template <class T>
  /* implicit */ OptimizerList(std::vector<T>& optimizers) {
    for (auto& optimizer : optimizers) add(optimizer);
  }
  template <class T>
  /* implicit */ OptimizerList(const std::vector<T>& optimizers) {
    for (auto& optimizer : optimizers) add(optimizer);
  }
  template <class... Opts>
  /* implicit */ OptimizerList(const std::tuple<Opts&...>& optimizers) {
    std::apply([&](auto&... optimizer) { (add(optimizer), ...); }, optimizers);
  }
  template <class... Opts, class = std::enable_if_t<(std::is_base_of_v<Optimizer, Opts> && ...)>>
  /* implicit */ OptimizerList(std::tuple<Opts...>& optimizers) {
    std::apply([&](auto&... optimizer) { (add(optimizer), ...); }, optimizers);
  }

  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

 private:
  void add(Optimizer& optimizer) { list_.push_back(&optimizer); }
  void add(Optimizer* optimizer) { list_.push_back(optimizer); }
  void add(const std::reference_wrapper<Optimizer>& optimizer) { list_.push_back(&optimizer.get()); }
  template <class Pointer>
  auto add(const Pointer& optimizer) -> decltype(static_cast<Optimizer*>(optimizer.get()), void()) {
    list_.push_back(optimizer.get());
  }

  std::vector<Optimizer*> list_;
};

/// A scope in which a scaled loss is differentiated (Apex's `with amp.scale_loss(...) as scaled_loss:`).
///
/// The end of the block unscales the gradients into FP32 masters (or in place), checks them for overflow, updates the loss
/// scale, and marks the next step to be skipped after an overflow. With a dynamic scale or `skip_nonfinite` this synchronises
/// once, to read the overflow flag. An exception that leaves the block undoes it: gradients from before the block are restored,
/// and the block's gradients are dropped.
///
/// All gradients in the parameters at the end of the block count as scaled gradients of this pass (BUG-32). amp removes the
/// gradients of earlier passes at the start. `backward` adds the gradients of passes with `delay_unscale` back, in this pass's
/// scale (SL-09). So a program that writes gradients inside the block, such as averages over processes, must write scaled
/// gradients; after the block it must write unscaled gradients. For a gradient penalty, divide the result of
/// `torch::autograd::grad` on `tensor()` by `amp::loss_scaler(id).loss_scale()` (BUG-17). If autograd gave several parameters
/// of the optimizers the same buffer as gradient, as for `a.t() + b.t()`, all but the first get a copy.
class ScaledLoss {
 public:
  ScaledLoss(const at::Tensor& loss, const OptimizerList& optimizers, const ScaleLossOptions& options);
  ScaledLoss(ScaledLoss&& other) noexcept;
  ScaledLoss& operator=(ScaledLoss&&) = delete;
  /// Calls `finish()`, or undoes the block if an exception is unwinding. An error of `finish` is thrown by the optimizer's next
  /// `step` or `scale_loss`; call `finish` yourself to get it at once.
  ~ScaledLoss();

  /// The loss times the loss scale: float32, with the loss's shape.
  const at::Tensor& tensor() const& { return scaled_; }
  at::Tensor tensor() && { return scaled_; }
  // By value, so that `const torch::Tensor& scaled_loss = amp::scale_loss(…)`, whose block ends at once, refers to a tensor.
  /* implicit */ operator at::Tensor() const { return scaled_; }

  /// Calls `torch::Tensor::backward` on the scaled loss. With `create_graph` and a loss scale other than 1 it warns once in a
  /// process that a penalty made from the gradients would contain the scale.
  void backward(const at::Tensor& gradient = {}, std::optional<bool> retain_graph = std::nullopt, bool create_graph = false,
                std::optional<at::TensorList> inputs = std::nullopt) const;

  /// Ends the block. Errors, which undo the block as an exception does: RuntimeError naming a parameter with a sparse gradient,
  /// or one of another shape, device or kind of number than the parameter; RuntimeError if the unscaled loss was differentiated
  /// instead of the scaled one, or if neither was and no parameter of the optimizers got a gradient in another way.
  /// RuntimeError with the scale's history when no usable scale is left: no parameter, scale or count has changed then, and all
  /// gradients are dropped, since earlier gradients are mixed with Inf or NaN.
  void finish();

 private:
  void enter();
  void leave();
  void abandon();
  bool needs_amp() const;
  bool has_grads() const;
  void separate_grads() const;
  void begin_unlisted_blocks();
  void end_unlisted_blocks();
  bool update_scale(LossScaler& scaler);
  std::vector<int64_t> float8_rows() const;
  void end_float8_pass(bool skipped);

  at::Tensor loss_;  // unscaled; read only after an overflow
  at::Tensor scaled_;
  detail::BackwardWatcher watcher_;
  std::shared_ptr<detail::Session> session_;
  std::vector<std::shared_ptr<detail::OptimizerStash>> stashes_;
  std::vector<std::shared_ptr<detail::OptimizerStash>> unlisted_;  // the session's other optimizers
  ScaleLossOptions options_;
  int exceptions_at_entry_;
  bool open_ = false;
};

/// Opens a block for one backward pass of `loss` (any shape, floating, any device). `optimizers`: handles returned by
/// `amp::initialize`; list every optimizer that steps with the pass's gradients. If parameters of another optimizer of the same
/// `initialize` get gradients, call its `zero_grad` before its next step or block, as between a GAN's two losses; otherwise
/// that step is an error, and without master weights that block. Errors, before any change: RuntimeError before `initialize`,
/// for an optimizer that is not a handle or was moved from, for a block inside another block of the same optimizer, for
/// optimizers of different `initialize` calls, for two optimizers that train one parameter, for an optimizer whose model was
/// initialized again, for a complex loss, for a dynamic loss scale or `skip_nonfinite` while a CUDA graph is captured;
/// IndexError for a `loss_id` out of range. Apex: `amp.scale_loss`.
[[nodiscard]] inline ScaledLoss scale_loss(const at::Tensor& loss, const OptimizerList& optimizers,
                                           const ScaleLossOptions& options = {}) {
  return ScaledLoss(loss, optimizers, options);
}

}  // namespace apex::amp
