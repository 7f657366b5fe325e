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

  /// Which loss scaler to use, in [0, num_losses).
  ScaleLossOptions& loss_id(int64_t id) { return loss_id_ = id, *this; }
  int64_t loss_id() const { return loss_id_; }
  /// Leave the gradients scaled in the model's parameters at the end of the block: a later pass adds to them and unscales all.
  /// If the scale has changed by then, they are brought to that of the later pass (Apex mixes the scales: SL-09). A `step`
  /// after such passes only is an error.
  ScaleLossOptions& delay_unscale(bool on) { return delay_unscale_ = on, *this; }
  bool delay_unscale() const { return delay_unscale_; }
  /// Neither move the scale nor skip a step on account of this block.
  ScaleLossOptions& delay_overflow_check(bool on) { return delay_overflow_check_ = on, *this; }
  bool delay_overflow_check() const { return delay_overflow_check_; }

 private:
  int64_t loss_id_;
  bool delay_unscale_ = false;
  bool delay_overflow_check_ = false;
};

/// One optimizer handle or several, in the forms in which programs hold them: `opt`, `{opt_a, opt_b}`, `std::tie(a, b)`,
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

/// The block in which a scaled loss is differentiated (Apex's `with amp.scale_loss(...) as scaled_loss:`).
///
/// Its end unscales the gradients into FP32 masters (or in place), checks them for overflow, moves the loss scale and arranges
/// for the next step to be skipped if need be; with a dynamic scale or `skip_nonfinite` that costs one read of a device flag.
/// An exception that leaves the block undoes it: gradients from before the block come back, those of the block are dropped.
///
/// All gradients that are in the parameters at the end of the block count as this pass's and as scaled (BUG-32). amp takes
/// those of earlier passes out at the start; `backward` puts those of passes with `delay_unscale` back, in this pass's scale,
/// into sums (SL-09). So a program that writes gradients inside the block, say averages over processes, writes scaled ones;
/// unscaled ones are written after it. For a gradient penalty, divide what `torch::autograd::grad` gives
/// for `tensor()` by `amp::loss_scaler(id).loss_scale()` (BUG-17). Where autograd has given several of the optimizers'
/// parameters one buffer as their gradients, as for `a.t() + b.t()`, all but the first get a copy.
class ScaledLoss {
 public:
  ScaledLoss(const at::Tensor& loss, const OptimizerList& optimizers, const ScaleLossOptions& options);
  ScaledLoss(ScaledLoss&& other) noexcept;
  ScaledLoss& operator=(ScaledLoss&&) = delete;
  /// `finish()`, unless an exception is unwinding. An error of `finish` is kept and thrown by the optimizer's next `step` or
  /// `scale_loss`; call `finish` yourself to get it at once.
  ~ScaledLoss();

  /// The loss times the loss scale, in float32, of the loss's shape.
  const at::Tensor& tensor() const { return scaled_; }
  /* implicit */ operator const at::Tensor&() const { return scaled_; }

  /// `torch::Tensor::backward` of the scaled loss. With `create_graph` and a loss scale other than 1 a warning, once in a
  /// process: a penalty made from the gradients would carry the scale.
  void backward(const at::Tensor& gradient = {}, std::optional<bool> retain_graph = std::nullopt, bool create_graph = false,
                std::optional<at::TensorList> inputs = std::nullopt) const;

  /// Ends the block. Errors: RuntimeError naming a parameter with a sparse gradient; the block is then undone as after an
  /// exception, and if the given loss was differentiated in the block and the scaled one was not, or if neither was and the
  /// optimizers' parameters have got no gradient in another way either. RuntimeError with the scale's history when no usable
  /// scale is left: no parameter, scale or count has moved then, and all gradients are dropped, since those from before the
  /// block are mixed with Inf or NaN.
  void finish();

 private:
  void enter();
  void leave();
  void abandon();
  bool needs_amp() const;
  bool has_grads() const;
  void part_grads() const;
  void find_bystanders();
  void release_bystanders();
  void update_scale(LossScaler& scaler);

  at::Tensor loss_;  // unscaled, looked at only after an overflow
  at::Tensor scaled_;
  detail::BackwardWatcher use_;
  std::shared_ptr<detail::Session> session_;
  std::vector<std::shared_ptr<detail::OptimizerStash>> stashes_;
  std::vector<std::shared_ptr<detail::OptimizerStash>> bystanders_;  // of the session, and not in the list
  ScaleLossOptions options_;
  int exceptions_at_entry_;
  bool open_ = false;
};

/// Opens a block for one backward pass of `loss` (any shape, floating, any device) that feeds `optimizers`, handles that
/// `amp::initialize` returned. All optimizers that are to step by the pass's gradients must be listed. One that is not, and
/// whose parameters get some, finds them gone at its next step or block (a `zero_grad` before does that, as between a GAN's two
/// losses), or these are errors.
/// Errors, before anything is changed: RuntimeError before `initialize`, for an optimizer that is no handle or was moved from,
/// for a block inside another one of the same optimizer, for optimizers of different `initialize` calls, for two optimizers
/// that train one parameter, for an optimizer whose model was initialized again, for a dynamic loss scale or `skip_nonfinite`
/// while a CUDA graph is captured; IndexError for a `loss_id` out of range. Apex: `amp.scale_loss`.
[[nodiscard]] inline ScaledLoss scale_loss(const at::Tensor& loss, const OptimizerList& optimizers,
                                           const ScaleLossOptions& options = {}) {
  return ScaledLoss(loss, optimizers, options);
}

}  // namespace apex::amp
