#pragma once

#include <apex_cpp/amp/handles/model_kinds.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/parallel/ddp/ddp_options.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace apex::parallel {

namespace detail {

class DdpEngine;

template <class Net, class Enable, class... Args>
struct ResultOfCall {
  using type = void;
};
template <class Net, class... Args>
struct ResultOfCall<Net, std::enable_if_t<std::is_invocable_v<Net&, Args...>>, Args...> {
  using type = std::invoke_result_t<Net&, Args...>;
};

/// The part of DistributedDataParallel that does not depend on the module's class. Movable, not copyable.
class DdpHandle {
 public:
  DdpHandle(const torch::nn::Module& module, const DistributedDataParallelOptions& options);

  void begin_forward() const;
  void pause() const;
  void resume() const;
  std::vector<at::Tensor> allreduce_buffers() const;
  /// Errors: RuntimeError for a handle that was moved from; the functions above have it, too.
  const std::shared_ptr<DdpEngine>& engine() const;

 private:
  std::shared_ptr<DdpEngine> engine_;
};

}  // namespace detail

/// During its lifetime, backward passes accumulate gradients on their ranks without a reduction: see
/// `DistributedDataParallel::no_sync`.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<detail::DdpEngine> engine);
  NoSync(NoSync&&) = default;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  std::shared_ptr<detail::DdpEngine> engine_;  // null after a move
};

/// Data-parallel training: every process trains the model on its own part of a batch. During the backward pass, gradients
/// become the mean over all processes. Apex: `apex.parallel.DistributedDataParallel`.
///
///     apex::parallel::init_process_group();
///     auto [net, opt] = apex::amp::initialize(model, optimizer, "O2");     // first
///     auto ddp = apex::parallel::DistributedDataParallel(net);             // then
///     auto loss = criterion(ddp->forward(x), y);                           // ddp(x) too
///     { auto scaled_loss = apex::amp::scale_loss(loss, opt); scaled_loss.backward(); }
///     opt.step();
///
/// `Net`: the handle of `initialize`, a TORCH_MODULE holder, a `std::shared_ptr` to a module, or a module, which is held by
/// reference. Any opt level; fused optimizers with and without materialize_master_grads. Parameters may have any floating-point
/// dtype and any dense memory order, on a CPU (Gloo) or GPU (NCCL; Gloo copies through the host). A parameter of several
/// modules counts once. Parameters may be frozen and unfrozen later, the same ones on all ranks. For parameters registered
/// later, construct a new object. Convert or move the model before: otherwise its next forward pass is an error with the
/// parameter's name.
///
/// The constructor is collective: it checks that all ranks have the same parameters and buffers, and copies rank 0's values to
/// all ranks. The first backward pass sorts gradients into buckets by the order in which they arrive (rank 0's order on all
/// ranks), and reduces them at its end. Later passes reduce a bucket as soon as its gradients have arrived, in parallel with
/// the rest of the pass; `backward()` returns when all gradients are reduced. Scaled gradients are reduced before amp checks
/// for overflow, so all ranks skip the same steps.
///
/// Errors of `backward()`:
/// - RuntimeError, on every rank, with the parameters that got no gradient and the ranks, unless `delay_allreduce` is set. On a
///   GPU, a rank that has all gradients reports this in its next backward pass, because it does not wait for the device.
/// - ValueError or RuntimeError, on every rank, if ranks have frozen different parameters. After the first pass, buckets of
///   different sizes may make collective operations fail instead.
/// - RuntimeError for a sparse gradient.
/// - c10::DistBackendError with the ranks that ended, took longer than the group's time-out, or continued alone after a
///   backward pass that threw on another rank.
///
/// Of an object that was moved from, every function but `module` and `parameters` is a RuntimeError.
///
/// A backward pass inside another one, as some ways to recompute activations run it, looks like two passes, the first of which
/// lacks gradients: an error. For such a model call `Reducer` after `backward()`; with amp, inside the scale_loss block.
template <class Net>
class DistributedDataParallel {
  using Held = std::conditional_t<amp::detail::kIsModule<Net>, std::reference_wrapper<Net>, Net>;

  /// Whether `net(x)` returns a value. For a holder it does, unless its forward is a template, like Sequential's.
  template <class... Args>
  static constexpr bool kCalls = !std::is_void_v<typename detail::ResultOfCall<Net, void, Args...>::type>;

 public:
  /// Marks a class that wraps a model after `amp::initialize`. `amp::initialize` rejects such a class.
  using wraps_initialized_model = std::true_type;

  /// Errors, on every rank: ValueError for options that contradict each other or differ between ranks; for ranks whose
  /// parameters or buffers differ in name, number, shape, memory order, dtype or kind of device; and for ranks whose opt
  /// levels, loss scales or bounds differ, which the first backward pass checks again. TypeError for a trained parameter that
  /// is not float16, bfloat16, float32 or float64. RuntimeError for a CPU parameter or buffer with NCCL, and for a parameter of
  /// another DistributedDataParallel.
  explicit DistributedDataParallel(Net& module, const DistributedDataParallelOptions& options = {})
      : module_(module), handle_(module_of(module), options) {}
  explicit DistributedDataParallel(Net&& module, const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module, options) {
    static_assert(!amp::detail::kIsModule<Net>,
                  "DistributedDataParallel keeps a reference to the module: pass a variable, not a temporary.");
  }
  DistributedDataParallel(DistributedDataParallel&&) = default;
  DistributedDataParallel& operator=(DistributedDataParallel&&) = default;

  /// The model's forward pass.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    handle_.begin_forward();
    if constexpr (amp::detail::kIsModule<Net>) {
      return module().forward(std::forward<Args>(args)...);
    } else if constexpr (kCalls<Args...>) {
      return module()(std::forward<Args>(args)...);
    } else {
      return module()->forward(std::forward<Args>(args)...);
    }
  }
  /// The model's own members, and `ddp->forward(x)`.
  auto operator->() {
    handle_.begin_forward();
    if constexpr (amp::detail::kIsModule<Net>) {
      return &module();
    } else {
      return module_.operator->();
    }
  }

  /// The wrapped model.
  Net& module() { return module_; }
  std::vector<at::Tensor> parameters() { return module_of(module()).parameters(); }

  /// During the lifetime of the result, backward passes accumulate gradients on their ranks; the next pass reduces the sums.
  /// With amp, the `scale_loss` blocks of such passes leave the gradients scaled, like `delay_unscale`, and a step after such
  /// passes alone is an error, also with `GradScaler`. Guards may nest. PyTorch: `no_sync`.
  NoSync no_sync() { return NoSync(handle_.engine()); }
  /// The same without a guard. Apex: the same names.
  void disable_allreduce() {
    if (!std::exchange(is_disabled_, true)) handle_.pause();
  }
  void enable_allreduce() {
    if (std::exchange(is_disabled_, false)) handle_.resume();
  }
  /// With `retain_allreduce_buffers`, after a backward pass: one flat tensor per bucket, whose memory the gradients share.
  /// Otherwise, and after the next backward pass outside of `no_sync` has begun, empty.
  std::vector<at::Tensor> allreduce_buffers() const { return handle_.allreduce_buffers(); }

 private:
  static torch::nn::Module& module_of(Net& module) { return amp::detail::module_in(module, "DistributedDataParallel"); }

  Held module_;
  detail::DdpHandle handle_;
  bool is_disabled_ = false;
};

}  // namespace apex::parallel
