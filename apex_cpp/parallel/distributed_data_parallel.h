#pragma once

#include <apex_cpp/amp/handles/model_kinds.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/parallel/ddp/options.h>
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

/// What the class template below is a thin cover of. Moves, and does not copy.
class DdpHandle {
 public:
  DdpHandle(const torch::nn::Module& module, const DistributedDataParallelOptions& options);

  void begin_forward() const;
  void pause() const;
  void resume() const;
  std::vector<at::Tensor> allreduce_buffers() const;
  const std::shared_ptr<DdpEngine>& engine() const { return engine_; }

 private:
  std::shared_ptr<DdpEngine> engine_;
};

}  // namespace detail

/// While it lives, backward passes leave gradients on their ranks, where they add up: `DistributedDataParallel::no_sync`.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<detail::DdpEngine> engine);
  NoSync(NoSync&&) = default;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  std::shared_ptr<detail::DdpEngine> engine_;  // null once moved from
};

/// Data-parallel training: every process trains the model on its own part of a batch, and its gradients become the mean over
/// all processes while the backward pass runs. Apex: `apex.parallel.DistributedDataParallel`.
///
///     apex::parallel::init_process_group();
///     auto [net, opt] = apex::amp::initialize(model, optimizer, "O2");     // first
///     auto ddp = apex::parallel::DistributedDataParallel(net);             // then
///     auto loss = criterion(ddp->forward(x), y);                           // ddp(x) too
///     { auto scaled_loss = apex::amp::scale_loss(loss, opt); scaled_loss.backward(); }
///     opt.step();
///
/// `Net`: what `initialize` returned, a TORCH_MODULE holder, a `std::shared_ptr` to a module, or a module itself, which is held
/// by reference. Any opt level and either order of gradients. Parameters of any floating dtype, in any dense memory order, on
/// a CPU (Gloo) or GPU (NCCL; Gloo by way of the host); one that several modules share counts once. Gradients of a parameter
/// that is frozen later, or no longer, are left out or come in by themselves; parameters registered later need a new object.
/// Convert or move the model before: afterwards its next forward pass is an error that names the parameter.
///
/// Construction is collective: it checks that all ranks have the same parameters and buffers, and gives them rank 0's values.
/// In the first backward pass gradients are sorted into buckets by the order in which they come, on all ranks by rank 0's
/// order, and reduced at the end. From then on a bucket is reduced as soon as its gradients are there, beside the rest of the
/// backward pass, and `backward()` returns when all gradients are back. Reduction is of scaled gradients, before amp looks for
/// overflow: all ranks see the same, and skip together. Errors of `backward()`: RuntimeError, on every rank, naming parameters
/// that got no gradient and the ranks, unless `delay_allreduce`; RuntimeError for a sparse gradient; c10::DistBackendError that
/// names the ranks when others ended or took longer than the group's time-out, or when one went on alone after a backward pass
/// that threw there. On a GPU a rank whose own gradients are all there learns of those missing elsewhere in its next backward
/// pass, since nothing waits for the device before.
///
/// A backward pass that runs another one inside, as one that computes activations again may, looks like two passes, the first
/// of which lacks gradients: an error. Such a model takes `Reducer` in place of this class, called after `backward()`, with
/// amp inside the scale_loss block.
template <class Net>
class DistributedDataParallel {
  using Held = std::conditional_t<amp::detail::kIsModule<Net>, std::reference_wrapper<Net>, Net>;

  /// Whether `net(x)` answers something: of a holder it does, unless its forward is a template, as Sequential's is.
  template <class... Args>
  static constexpr bool kCalls = !std::is_void_v<typename detail::ResultOfCall<Net, void, Args...>::type>;

 public:
  /// Marks what wraps a model after `amp::initialize`, which takes none of these.
  using wraps_initialized_model = std::true_type;

  /// Errors, on every rank: ValueError for options that contradict each other or differ between ranks, and for ranks whose
  /// parameters or buffers differ in name, number, shape, memory order, dtype or kind of device, or whose opt levels, loss
  /// scales or their bounds differ, which the first backward pass checks once more; TypeError for a trained parameter other
  /// than float16, bfloat16, float32 and float64; RuntimeError for a CPU parameter or buffer and NCCL, and for a parameter that
  /// another one has.
  explicit DistributedDataParallel(Net& module, const DistributedDataParallelOptions& options = {})
      : module_(module), handle_(module_of(module), options) {}
  explicit DistributedDataParallel(Net&& module, const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module, options) {
    static_assert(!amp::detail::kIsModule<Net>, "DistributedDataParallel refers to the module: give it one that stays.");
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

  /// What was given.
  Net& module() { return module_; }
  std::vector<at::Tensor> parameters() { return module_of(module()).parameters(); }

  /// Gradients of backward passes stay on their ranks as long as what this answers lives, and add up; the next pass reduces
  /// the sums. With amp their `scale_loss` blocks leave them scaled in the model, as `delay_unscale` does, and a step after
  /// such passes only is an error, by `GradScaler` too. Guards may nest. PyTorch: `no_sync`.
  NoSync no_sync() { return NoSync(handle_.engine()); }
  /// The same by hand. Apex: the same names.
  void disable_allreduce() {
    if (!std::exchange(is_disabled_, true)) handle_.pause();
  }
  void enable_allreduce() {
    if (std::exchange(is_disabled_, false)) handle_.resume();
  }
  /// With `retain_allreduce_buffers`, after a backward pass: one flat tensor for each bucket, whose memory gradients share.
  /// Empty otherwise, and from the next forward pass on.
  std::vector<at::Tensor> allreduce_buffers() const { return handle_.allreduce_buffers(); }

 private:
  static torch::nn::Module& module_of(Net& module) { return amp::detail::module_in(module, "DistributedDataParallel"); }

  Held module_;
  detail::DdpHandle handle_;
  bool is_disabled_ = false;
};

}  // namespace apex::parallel
