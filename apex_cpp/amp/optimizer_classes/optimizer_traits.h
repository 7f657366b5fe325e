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

/// Base, beside `torch::optim::Optimizer`, of an optimizer class that `amp::initialize` can be given behind a pointer: it knows
/// its own class, which the pointer does not tell. A class derived from such a one counts as the program's own, unless it
/// declares the function again (`kMakesOwnHandle`).
class MakesAmpHandle {
 public:
  virtual ~MakesAmpHandle() = default;
  /// The class that handles are made of; null where the class does not tell. Objects of classes derived from it are refused.
  virtual const std::type_info* amp_handle_class() const { return nullptr; }
  /// A handle of the optimizer's own class, move-constructed from it.
  virtual std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<detail::Session>& session) = 0;

 protected:
  MakesAmpHandle() = default;
  MakesAmpHandle(MakesAmpHandle&&) = default;
  MakesAmpHandle& operator=(MakesAmpHandle&&) = default;
};

}  // namespace apex::amp

namespace apex::amp::detail {

struct Session;

template <class... Opts>
struct OptimizerClasses {
  template <class Opt>
  static constexpr bool contains = (std::is_same_v<Opt, Opts> || ...);
};
using TorchOptimizers = OptimizerClasses<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW, torch::optim::RMSprop,
                                         torch::optim::Adagrad, torch::optim::LBFGS>;

template <class Opt>
using MakeAmpHandle = std::unique_ptr<torch::optim::Optimizer> (Opt::*)(const std::shared_ptr<Session>&);

/// Whether `Opt` itself declares `make_amp_handle`, rather than a class that it is derived from.
template <class Opt, class = void>
inline constexpr bool kMakesOwnHandle = false;
template <class Opt>
inline constexpr bool
    kMakesOwnHandle<Opt, std::enable_if_t<std::is_same_v<decltype(&Opt::make_amp_handle), MakeAmpHandle<Opt>>>> = true;

/// Whether `Opt` is a class of the program's own, whose `step` may write what those of torch and of this library never do; a
/// wrapper of this library is one if what it goes around is.
template <class Opt>
inline constexpr bool kIsCustomOptimizer = !TorchOptimizers::contains<Opt> && !kMakesOwnHandle<Opt>;
template <template <class> class Wrapper, class Opt>
inline constexpr bool kIsCustomOptimizer<Wrapper<Opt>> = !kMakesOwnHandle<Wrapper<Opt>> || kIsCustomOptimizer<Opt>;

}  // namespace apex::amp::detail

namespace apex::amp {

/// What amp tells an optimizer that updates masters itself: where gradients are, and which parameters get the new values too.
struct MasterStep {
  /// By group and position: the model's 16-bit parameter behind a float32 master, undefined where the optimizer holds the
  /// model's own parameter. Empty where the level has no masters.
  std::vector<std::vector<at::Tensor>> model_params;
  /// The gradients of masters are in `model_params`, in 16 bits; otherwise they are in the masters.
  bool grads_in_model = false;
  /// Gradients are multiplied by it when they are read.
  double grad_scale = 1.0;
};

/// Base, beside `torch::optim::Optimizer`, of an optimizer whose `step` reads gradients and writes model parameters as
/// `master_step` says, in one pass over memory. The handle that `amp::initialize` returns keeps `master_step` up to date; an
/// optimizer without amp has an empty one. Apex: what its amp knows of FusedSGD.
class StepsMasters : public MakesAmpHandle {
 public:
  /// Whether amp is to write unscaled float32 gradients into the masters at the end of a `scale_loss` block (Apex's order:
  /// they can be edited and clipped there), or leave them scaled in the model's parameters for `step` to read.
  virtual bool materialize_master_grads() const = 0;

  MasterStep master_step;
};

/// Base of an optimizer's state for one parameter whose tensors follow the parameter's dtype.
class CastableParamState {
 public:
  virtual ~CastableParamState() = default;
  /// Casts the tensors that have the parameter's dtype to `dtype`.
  virtual void cast_to(at::ScalarType dtype) = 0;
};

/// The gradients of an optimizer that takes them out of the parameters while backward runs, adds them up over the processes
/// of a group, and keeps on each process a part of the sums, in float32. Every method but the first two, `has_open_grads` and
/// `first_nonfinite` is collective: all processes call it at the same place of the program, and all find the same.
class GradShards {
 public:
  virtual ~GradShards() = default;

  /// A backward pass begins. `held`: its gradients are left in the parameters, for a later pass to add to. `watched`: remember
  /// which ranks have Inf or NaN among those that are sent.
  virtual void begin_pass(bool held, bool watched) = 0;
  virtual void end_held_pass() = 0;
  /// Whether this process has gradients that no `end_pass` has added up yet.
  virtual bool has_open_grads() const = 0;

  /// Adds up the gradients of the pass, which carry `scale`; those of earlier passes are brought to it.
  virtual void end_pass(double scale) = 0;
  /// Drops the gradients of the pass; those of passes that have ended stay.
  virtual void abandon_pass() = 0;
  /// Drops all sums.
  virtual void drop() = 0;

  /// The L2 norm of all sums over all processes, with their scale taken out: float32, one element, on the CPU. Not finite if a
  /// gradient is not; after a watched pass it then finds `first_nonfinite` as well. Synchronises.
  virtual at::Tensor norm() = 0;
  /// Whether the last pass has brought Inf or NaN, or a sum whose norm is not finite; what earlier passes had brought already
  /// counts no more. Synchronises.
  virtual bool pass_overflowed() = 0;
  /// Has the next step multiply by what makes that norm at most `max_norm`; returns the norm from before. Synchronises.
  virtual double clip(double max_norm) = 0;
  /// 1 if a sum is not finite on any process, else 0: float32 scalar.
  virtual at::Tensor found_inf() = 0;
  /// Multiplies the sums by `inv_scale`, float32 scalar.
  virtual void unscale(const at::Tensor& inv_scale) = 0;

  /// The first parameter whose sum has values that are not finite, over all processes; undefined if there is none. `grads`
  /// parameters have some. `ranks` had some among what was sent together with its gradient. Known since `norm`, so that a
  /// process may ask for it alone.
  struct Nonfinite {
    at::Tensor param;
    int64_t inf_count = 0;
    int64_t nan_count = 0;
    int64_t grads = 0;
    std::vector<int> ranks = {};
  };
  virtual Nonfinite first_nonfinite() const = 0;
  /// The processes that have found an overflow, their own gradients beside these included.
  virtual std::vector<int> ranks_with_overflow(bool found_here) = 0;
};

/// Base, beside `torch::optim::Optimizer`, of an optimizer whose masters, state and gradients are spread over processes. amp
/// makes no masters for it, and asks it for what it does elsewhere with gradients.
class ShardedOptimizer {
 public:
  virtual ~ShardedOptimizer() = default;

  virtual std::shared_ptr<GradShards> grad_shards() const = 0;
  /// Whether 16-bit parameters have float32 masters.
  virtual bool keeps_masters() const = 0;
  /// Weights may have been written in ways that leave no trace.
  virtual void weights_were_written() = 0;

  // Checkpoints.
  /// The class whose layout a saved state has.
  virtual const char* saved_as() const = 0;
  /// Whether this process writes the file. `save` is collective and gives the state to this process alone.
  virtual bool writes_file() const = 0;
  /// Collective: ends the saving. Errors: c10::Error with the `error` of the process that writes, on every process.
  virtual void agree_on_file(const std::string& error) const = 0;
  /// Takes this process's part of the float32 value of `param`, if it has a master. Not collective.
  virtual void load_master(const at::Tensor& param, const at::Tensor& value) = 0;

 protected:
  ShardedOptimizer() = default;
  ShardedOptimizer(ShardedOptimizer&&) = default;
  ShardedOptimizer& operator=(ShardedOptimizer&&) = default;
};

/// Base, beside `torch::optim::Optimizer`, of an optimizer whose `step` unscales its gradients and skips itself, on the device.
///
/// `GradScaler::step` then neither unscales nor reads anything back: it looks for Inf and NaN in the gradients, which it does
/// not write, sets both tensors, calls `step`, and drops them after it. `step` divides every gradient by `grad_scale` where
/// that is defined, and must change no parameter and no state where `found_inf` is defined and not 0. Without a scaler both are
/// undefined. Python: `_step_supports_amp_scaling`.
class StepSupportsAmpScaling {
 public:
  virtual ~StepSupportsAmpScaling() = default;

  /// float32, one element, on the scaler's device; undefined once the gradients are unscaled. A value that is there before
  /// `GradScaler::step` is a scale of the user's own, and is multiplied in.
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
