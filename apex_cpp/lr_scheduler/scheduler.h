#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/ordered_dict.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace apex::lr_scheduler {

/// The base of all schedulers of this header, itself one of LibTorch's: code that takes a `torch::optim::LRScheduler&` works.
///
/// The optimizer is any `torch::optim::Optimizer`: one of LibTorch's, one of apex_cpp's, or the handle of `amp::initialize`. It
/// must not be moved, assigned to or destroyed before its schedulers.
///
/// `base_lrs` are Python's `initial_lr`: the rates from before the first scheduler of this optimizer was made, also where it
/// was made before `amp::initialize`. They are kept as long as any scheduler of the optimizer lives (Python keeps them in it).
/// A derived class writes `get_lr` and, if it is to follow another one in `SequentialLR` and needs the current rates,
/// `first_lr`; its constructor ends with `step()`.
class LRScheduler : public torch::optim::LRScheduler {
 public:
  /// Position and rates as numbers by name, like `amp::GradScaler::StateDict`: entries of an `amp::Metadata`, for example. The
  /// arguments of the constructor are not in it.
  using StateDict = torch::OrderedDict<std::string, double>;

  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  /// How often `step` was called since the scheduler was made.
  int64_t last_epoch() const { return static_cast<int64_t>(step_count_) - 1; }
  /// The rates that the scheduler set last, one for each parameter group.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }
  torch::optim::Optimizer& optimizer() const { return scheduled_; }

  StateDict state_dict() const;
  /// Continues where the saved scheduler was: the following rates have the same bits. Unlike Python's, it also sets the
  /// optimizer's rates, and OneCycleLR its momentum, to those of the time of `state_dict`. So it does not matter whether the
  /// optimizer was loaded before or after the scheduler was made. Errors, before anything is changed: RuntimeError for a
  /// missing entry; ValueError for another number of groups or a negative position.
  void load_state_dict(const StateDict& state);
  /// For `torch::save` and `torch::load`. Errors: as `load_state_dict`.
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const LRScheduler& scheduler);
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, LRScheduler& scheduler);

 protected:
  explicit LRScheduler(torch::optim::Optimizer& optimizer);

  /// The rates at `epoch()`, one for each group.
  virtual std::vector<double> get_lr() = 0;
  /// The rates at epoch 0 from `base_lrs()`, whatever the current rates are.
  virtual std::vector<double> first_lr() { return get_lr(); }
  /// Throws what the next `get_lr` would throw. Changes nothing.
  virtual void check_step() const {}
  /// `prefix`: of the names.
  virtual void write_state(StateDict& state, const std::string& prefix) const;
  /// Changes nothing. Errors: as `load_state_dict`.
  virtual void check_state(const StateDict& state, const std::string& prefix) const;
  virtual void read_state(const StateDict& state, const std::string& prefix);

  /// What `get_lr` computes rates for: 0 when the scheduler is made, then one more in each `step`.
  int64_t epoch() const { return step_count_; }
  /// Errors: ValueError if groups were added to the optimizer since the scheduler was made.
  const std::vector<double>& base_lrs() const;
  std::vector<double> scaled_lrs(double factor) const;
  void set_base_lrs(std::vector<double> lrs);
  void set_optimizer_lrs(const std::vector<double>& lrs);
  void set_initial_lrs(const std::vector<double>& lrs);

 private:
  friend class CombinedScheduler;

  std::vector<double> get_lrs() final;
  void restart();

  torch::optim::Optimizer& scheduled_;
  std::vector<std::shared_ptr<double>> initial_lrs_;  // of the groups, with other schedulers
  std::vector<double> base_lrs_, last_lrs_;
};

}  // namespace apex::lr_scheduler
