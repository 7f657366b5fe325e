#pragma once

#include <apex_cpp/lr_scheduler/scheduler.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace apex::lr_scheduler {

using Schedulers = std::vector<std::shared_ptr<LRScheduler>>;

/// A scheduler of schedulers, whose state includes theirs.
class CombinedScheduler : public LRScheduler {
 protected:
  CombinedScheduler(torch::optim::Optimizer& optimizer, Schedulers schedulers);
  void write_state(StateDict& state, const std::string& prefix) const override;
  void check_state(const StateDict& state, const std::string& prefix) const override;
  void read_state(const StateDict& state, const std::string& prefix) override;

  static void check_step_of(const LRScheduler& scheduler) { scheduler.check_step(); }
  /// Takes back the first step, of the scheduler's constructor.
  static void undo(LRScheduler& scheduler) { scheduler.step_count_ = 0; }
  static void restart(LRScheduler& scheduler) { scheduler.restart(); }

  Schedulers schedulers_;
};

/// Calls `schedulers` one after the other: each begins at its milestone, from the initial rates. Python: SequentialLR; from
/// milestones that are 0 it begins with the scheduler behind them, as PyTorch does since 2.15. A warm-up and a cosine:
///
/// ```
/// SequentialLR(opt, {std::make_shared<LinearLR>(opt, 0.01, 1.0, 500),
///                    std::make_shared<CosineAnnealingLR>(opt, steps - 500)}, {500});
/// ```
/// Errors, before anything is changed: ValueError for an empty list, a null pointer, schedulers of another optimizer, a
/// SequentialLR or ChainedScheduler among them, and unless there is one milestone fewer than schedulers, in ascending order.
class SequentialLR : public CombinedScheduler {
 public:
  SequentialLR(torch::optim::Optimizer& optimizer, Schedulers schedulers, std::vector<int64_t> milestones);

 protected:
  std::vector<double> get_lr() override;
  void check_step() const override;

 private:
  size_t active() const;
  bool begins(size_t scheduler) const;

  std::vector<int64_t> milestones_;
};

/// Steps all `schedulers`, so that their factors multiply. Python: ChainedScheduler. Errors, before anything is changed:
/// ValueError for an empty list, a null pointer, and schedulers of different optimizers.
class ChainedScheduler : public CombinedScheduler {
 public:
  explicit ChainedScheduler(Schedulers schedulers);

 protected:
  std::vector<double> get_lr() override;
  void check_step() const override;
};

}  // namespace apex::lr_scheduler
