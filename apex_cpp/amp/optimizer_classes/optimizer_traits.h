#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace apex::amp {

namespace detail {
struct Session;
}

/// Second base, beside `torch::optim::Optimizer`, of optimizer classes that `amp::initialize` accepts behind a base-class
/// pointer: the object makes a handle of its own class. A class derived from such a class counts as a custom optimizer unless
/// it declares `make_amp_handle` again (`kMakesOwnHandle`).
class MakesAmpHandle {
 public:
  virtual ~MakesAmpHandle() = default;
  /// The optimizer class that `make_amp_handle` makes handles of; null for no check. Objects of derived classes are rejected.
  virtual const std::type_info* amp_handle_class() const { return nullptr; }
  /// A handle of the optimizer's own class, move-constructed from it.
  virtual std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<detail::Session>& session) = 0;

 protected:
  MakesAmpHandle() = default;
  MakesAmpHandle(MakesAmpHandle&&) = default;
  MakesAmpHandle& operator=(MakesAmpHandle&&) = default;
};

namespace detail {

template <class... Opts>
struct OptimizerClasses {
  template <class Opt>
  static constexpr bool contains = (std::is_same_v<Opt, Opts> || ...);
};
using TorchOptimizers = OptimizerClasses<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW, torch::optim::RMSprop,
                                         torch::optim::Adagrad, torch::optim::LBFGS>;

template <class Opt>
using MakeAmpHandle = std::unique_ptr<torch::optim::Optimizer> (Opt::*)(const std::shared_ptr<Session>&);

/// Whether `Opt` itself declares `make_amp_handle`, not only a base class.
template <class Opt, class = void>
inline constexpr bool kMakesOwnHandle = false;
template <class Opt>
inline constexpr bool
    kMakesOwnHandle<Opt, std::enable_if_t<std::is_same_v<decltype(&Opt::make_amp_handle), MakeAmpHandle<Opt>>>> = true;

/// Whether `Opt` is an optimizer class of the program, whose `step` may write to more than LibTorch's and apex_cpp's classes
/// do. An apex_cpp wrapper is custom if the wrapped class is.
template <class Opt>
inline constexpr bool kIsCustomOptimizer = !TorchOptimizers::contains<Opt> && !kMakesOwnHandle<Opt>;
template <template <class> class Wrapper, class Opt>
inline constexpr bool kIsCustomOptimizer<Wrapper<Opt>> = !kMakesOwnHandle<Wrapper<Opt>> || kIsCustomOptimizer<Opt>;

}  // namespace detail

/// What amp passes to an optimizer that updates the model's parameters itself: where gradients are, and the model's parameters.
struct MasterStep {
  /// The model's 16-bit parameter of each float32 master, by group and position in the group; undefined where the group holds
  /// the model's own parameter. Empty without master weights.
  std::vector<std::vector<at::Tensor>> model_params;
  /// Whether the gradients are the 16-bit gradients of `model_params`, rather than the masters' float32 gradients.
  bool grads_in_model = false;
  /// The step multiplies every gradient by this factor.
  double grad_scale = 1.0;
};

/// Second base, beside `torch::optim::Optimizer`, of optimizers whose `step` reads gradients and writes model parameters as
/// `master_step` says, in one pass over memory. The handle that `amp::initialize` returns keeps `master_step` up to date;
/// without amp it is empty. Apex: the special handling of FusedSGD in amp.
class StepsMasters : public MakesAmpHandle {
 public:
  /// True: amp writes unscaled float32 gradients into the masters at the end of a `scale_loss` block, where the program can
  /// edit and clip them (Apex's behaviour). False: amp leaves them scaled in the model's parameters, and `step` unscales them.
  virtual bool materialize_master_grads() const = 0;

  /// Whether the optimizer keeps float32 masters of parameters of this dtype beside the parameters. amp then makes none, and
  /// the groups hold the model's parameters.
  virtual bool keeps_masters_of(at::ScalarType /*dtype*/) const { return false; }
  /// A copy of such a master, float32; undefined if there is none, and before the parameter's first step unless its value was
  /// loaded. Of a parameter that is trained without a master: its value.
  virtual at::Tensor kept_master_of(const at::Tensor& /*param*/) const { return {}; }
  /// Writes a float32 value to such a master and to its parameter. Returns false, and writes nothing, for other parameters.
  virtual bool load_kept_master(const at::Tensor& /*param*/, const at::Tensor& /*value*/) { return false; }
  /// Whether the optimizer changes parameters outside of its steps, too, as FusedScheduleFreeAdamW does with its mode.
  virtual bool changes_params_between_steps() const { return false; }
  /// amp has put `to` in the place of `from` in a group, such as a master in that of a parameter.
  virtual void param_was_replaced(const at::Tensor& /*from*/, const at::Tensor& /*to*/) {}

  MasterStep master_step;
};

/// Second base of an optimizer's per-parameter state whose tensors have the parameter's dtype.
class CastableParamState {
 public:
  virtual ~CastableParamState() = default;
  /// Casts the tensors that have the parameter's dtype to `dtype`.
  virtual void cast_to(at::ScalarType dtype) = 0;
};

/// The gradients of a sharded optimizer. It takes gradients out of the parameters while backward runs, sums them over the
/// processes of a group, and keeps a part of the float32 sums on each process. Every method except `begin_pass`,
/// `end_held_pass`, `has_open_grads` and `first_nonfinite` is collective: all processes call it at the same point of the
/// program and get the same result.
class GradShards {
 public:
  virtual ~GradShards() = default;

  /// Starts a backward pass. `held`: its gradients stay in the parameters, and a later pass adds to them. `watched`: record
  /// which ranks send Inf or NaN.
  virtual void begin_pass(bool held, bool watched) = 0;
  /// Ends a pass that began with `held`. `is_delayed`: its gradients carry the loss scale until a later pass ends.
  virtual void end_held_pass(bool is_delayed) = 0;
  /// Whether this process has gradients that `end_pass` has not summed yet.
  virtual bool has_open_grads() const = 0;

  /// Sums the gradients of the pass, which carry the loss scale `scale`. Sums of earlier passes are converted to it.
  virtual void end_pass(double scale) = 0;
  /// Drops the gradients of the current pass. Sums of ended passes stay.
  virtual void abandon_pass() = 0;
  /// Drops all sums.
  virtual void drop() = 0;

  /// The L2 norm of all unscaled sums of all processes: float32, one element, on the CPU. Not finite if a gradient is not;
  /// after a `watched` pass, `first_nonfinite` is then known too. Synchronises.
  virtual at::Tensor norm() = 0;
  /// Whether the last pass added Inf or NaN, or made the norm non-finite. Inf and NaN of earlier passes do not count.
  /// Synchronises.
  virtual bool pass_overflowed() = 0;
  /// Makes the next step scale the sums so that `norm()` is at most `max_norm`. Returns the norm before. Synchronises.
  virtual double clip(double max_norm) = 0;
  /// 1 if a sum on any process is not finite, else 0: float32 scalar.
  virtual at::Tensor found_inf() = 0;
  /// Multiplies the sums by `inv_scale`, float32 scalar.
  virtual void unscale(const at::Tensor& inv_scale) = 0;

  struct Nonfinite {
    at::Tensor param;
    int64_t inf_count = 0;
    int64_t nan_count = 0;
    int64_t grads = 0;            ///< number of parameters whose sums are not finite
    std::vector<int> ranks = {};  ///< ranks that had Inf or NaN in what they sent together with this gradient
  };
  /// The first parameter, over all processes, whose sum has Inf or NaN; undefined if there is none. `norm` finds it, so a
  /// process may call this alone.
  virtual Nonfinite first_nonfinite() const = 0;
  /// The ranks that found an overflow, in these gradients or in others (`found_here`).
  virtual std::vector<int> ranks_with_overflow(bool found_here) = 0;
  /// The maximum over all processes, in place.
  virtual void take_maximum(const at::Tensor& values) = 0;
};

/// Second base, beside `torch::optim::Optimizer`, of optimizers whose masters, state and gradients are sharded over processes.
/// amp makes no masters for it and handles its gradients through `grad_shards`.
class ShardedOptimizer {
 public:
  virtual ~ShardedOptimizer() = default;

  virtual std::shared_ptr<GradShards> grad_shards() const = 0;
  /// Whether 16-bit parameters have float32 masters.
  virtual bool keeps_masters() const = 0;
  /// The program may have written to weights without changing their version counters.
  virtual void weights_were_written() = 0;

  // Checkpoints.
  /// The name of the optimizer class whose state layout `save` writes.
  virtual const char* saved_as() const = 0;
  /// Whether this process writes the file. `save` is collective and gives the state to this process only.
  virtual bool writes_file() const = 0;
  /// Ends saving; collective. Errors: c10::Error with the `error` of the writing process, on every process.
  virtual void agree_on_file(const std::string& error) const = 0;
  /// Copies this process's part of the float32 `value` into the master of `param`, if it has one. Sends nothing, but every
  /// process loads the same parameters.
  virtual void load_master(const at::Tensor& param, const at::Tensor& value) = 0;

 protected:
  ShardedOptimizer() = default;
  ShardedOptimizer(ShardedOptimizer&&) = default;
  ShardedOptimizer& operator=(ShardedOptimizer&&) = default;
};

/// Second base, beside `torch::optim::Optimizer`, of optimizers whose `step` unscales gradients and skips itself on the device.
///
/// `GradScaler::step` then neither unscales nor synchronises: it checks the gradients for Inf and NaN, sets both tensors, calls
/// `step`, and resets both. `step` must divide every gradient by `grad_scale` if defined, and must change no parameter and no
/// state if `found_inf` is defined and not 0. Without a scaler both are undefined. PyTorch: `_step_supports_amp_scaling`.
class StepSupportsAmpScaling {
 public:
  virtual ~StepSupportsAmpScaling() = default;

  /// float32, one element, on the scaler's device; undefined once the gradients are unscaled. If the program has set it before
  /// `GradScaler::step`, the scaler multiplies its scale by that value.
  at::Tensor grad_scale;
  /// float32, one element, on the scaler's device.
  at::Tensor found_inf;

 protected:
  StepSupportsAmpScaling() = default;
  StepSupportsAmpScaling(const StepSupportsAmpScaling&) = default;
  StepSupportsAmpScaling& operator=(const StepSupportsAmpScaling&) = default;
  StepSupportsAmpScaling(StepSupportsAmpScaling&&) = default;
  StepSupportsAmpScaling& operator=(StepSupportsAmpScaling&&) = default;
};

}  // namespace apex::amp
