#pragma once

#include <apex_cpp/lr_scheduler/scheduler.h>

#include <c10/util/ArrayRef.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace apex::lr_scheduler {

/// Options of OneCycleLR, with Python's names and defaults. A list has a value for each parameter group; a single value is for
/// all of them. Give `total_steps`, or `epochs` and `steps_per_epoch`.
class OneCycleLROptions {
 public:
  OneCycleLROptions(c10::ArrayRef<double> max_lr) : max_lr_(max_lr.vec()) {}  // NOLINT: implicit, so that 0.1 is one
  OneCycleLROptions(double max_lr) : max_lr_{max_lr} {}                       // NOLINT: implicit

  TORCH_ARG(std::optional<int64_t>, total_steps);
  TORCH_ARG(std::optional<int64_t>, epochs);
  TORCH_ARG(std::optional<int64_t>, steps_per_epoch);
  /// The part of the cycle, 0 to 1, in which the rate rises.
  TORCH_ARG(double, pct_start) = 0.3;
  /// "cos" or "linear".
  TORCH_ARG(std::string, anneal_strategy) = "cos";
  /// Momentum, or Adam's first beta, goes from max_momentum to base_momentum while the rate rises, and back.
  TORCH_ARG(bool, cycle_momentum) = true;
  /// The first rate is max_lr / div_factor, the last one max_lr / div_factor / final_div_factor.
  TORCH_ARG(double, div_factor) = 25.0;
  TORCH_ARG(double, final_div_factor) = 1e4;
  /// The rate falls as long as it rose, and then to the last rate.
  TORCH_ARG(bool, three_phase) = false;

 public:
  OneCycleLROptions& base_momentum(c10::ArrayRef<double> values) { return base_momentum_ = values.vec(), *this; }
  OneCycleLROptions& max_momentum(c10::ArrayRef<double> values) { return max_momentum_ = values.vec(), *this; }
  const std::vector<double>& max_lr() const { return max_lr_; }
  const std::vector<double>& base_momentum() const { return base_momentum_; }
  const std::vector<double>& max_momentum() const { return max_momentum_; }

 private:
  std::vector<double> max_lr_, base_momentum_{0.85}, max_momentum_{0.95};
};

/// The 1cycle policy (Smith and Topin, arXiv:1708.07120): the rate rises to max_lr and falls again, once. It sets the rates
/// whatever they are, so it cannot be chained. As in Python, the first rates become the optimizer's initial ones for other
/// schedulers. Python: OneCycleLR.
///
/// Momentum is cycled in the groups' options: `momentum` of SGD, RMSprop, FusedSGD, FusedLARS and Muon; the first of `betas` of
/// Adam, AdamW, FusedAdam, DistributedFusedAdam, FusedLAMB, FusedLion, FusedNovoGrad and FusedMixedPrecisionLamb, and of
/// classes with these options.
///
/// Errors, before anything is changed: ValueError unless the steps are positive, pct_start is 0 to 1 and makes no phase of
/// length 0, anneal_strategy has one of its values, divisors are not 0, and lists have a value for each group; for
/// cycle_momentum with other options; and for a `step` past `total_steps`.
class OneCycleLR : public LRScheduler {
 public:
  OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options);

 protected:
  std::vector<double> get_lr() override;
  void check_step() const override;
  void write_state(StateDict& state, const std::string& prefix) const override;
  void check_state(const StateDict& state, const std::string& prefix) const override;
  void read_state(const StateDict& state, const std::string& prefix) override;

 private:
  /// The values of a group that the phases lead through.
  struct Bounds {
    double initial, max, min;
  };
  /// A part of the cycle between two steps, which need not be whole numbers.
  struct Phase {
    double start_step, end_step;
    double Bounds::*start_lr, Bounds::*end_lr;
    double Bounds::*start_momentum, Bounds::*end_momentum;
  };
  static std::vector<Phase> phases_of(const OneCycleLROptions& options, int64_t total_steps);

  const Phase& phase() const;
  double anneal(double start, double end, double pct) const;

  int64_t total_steps_;
  bool is_cosine_, cycle_momentum_;
  std::vector<Phase> phases_;
  std::vector<Bounds> lrs_, momentums_;
};

}  // namespace apex::lr_scheduler
