#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace apex::amp {

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

}  // namespace apex::amp
