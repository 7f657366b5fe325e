#include "training/schedule.h"

#include <algorithm>
#include <cmath>

#include "errors.h"
#include "training/optimizer.h"

namespace train {
namespace {

namespace lrs = apex::lr_scheduler;
using Made = std::unique_ptr<lrs::LRScheduler>;

constexpr double kPi = 3.14159265358979323846;

double cosine(double from, double to, double progress) {
  return to + (from - to) * 0.5 * (1 + std::cos(kPi * std::min(progress, 1.0)));
}

/// none, step and cosine: a factor for the warm-up on a rate that follows from the step.
double rate_of(const Config& config, int64_t step, int64_t steps_per_epoch) {
  const auto& schedule = config.schedule;
  const auto epoch = static_cast<double>(step) / static_cast<double>(steps_per_epoch);
  double lr = config.optimizer.lr;
  if (schedule.type == "step") {
    lr *= std::pow(schedule.gamma, static_cast<double>(step / steps_per_epoch / schedule.step_epochs));
  } else if (schedule.type == "cosine") {
    lr = cosine(lr, schedule.final_lr, epoch / static_cast<double>(config.epochs));
  }
  const double warmup_steps = schedule.warmup_epochs * static_cast<double>(steps_per_epoch);
  return lr * (warmup_steps > 0 ? std::min(1.0, static_cast<double>(step + 1) / warmup_steps) : 1.0);
}

Made one_cycle(const ScheduleConfig& schedule, double max_lr, torch::optim::Optimizer& optimizer, int64_t steps) {
  return std::make_unique<lrs::OneCycleLR>(optimizer, lrs::OneCycleLROptions(max_lr)
                                                          .total_steps(steps)
                                                          .pct_start(schedule.pct_start)
                                                          .div_factor(schedule.div_factor)
                                                          .final_div_factor(schedule.final_div_factor)
                                                          .cycle_momentum(schedule.cycle_momentum));
}

std::shared_ptr<lrs::LRScheduler> fall(const Config& config, torch::optim::Optimizer& optimizer, int64_t steps) {
  if (config.schedule.type == "polynomial") {
    return std::make_shared<lrs::PolynomialLR>(optimizer, steps, config.schedule.power);
  }
  return std::make_shared<lrs::LinearLR>(optimizer, 1.0, config.schedule.final_lr / config.optimizer.lr, steps);
}

/// A rise to the full rate in the warm-up's last step, and the fall behind it.
Made warmup_and_fall(const Config& config, torch::optim::Optimizer& optimizer, int64_t steps_per_epoch) {
  const auto warmup = std::max<int64_t>(std::llround(config.schedule.warmup_epochs * static_cast<double>(steps_per_epoch)), 0);
  const auto rest = std::max<int64_t>(config.epochs * steps_per_epoch - warmup, 1);
  auto rise = std::make_shared<lrs::LinearLR>(optimizer, 1.0 / static_cast<double>(std::max<int64_t>(warmup, 1)), 1.0,
                                              std::max<int64_t>(warmup - 1, 0));
  return std::make_unique<lrs::SequentialLR>(optimizer, lrs::Schedulers{rise, fall(config, optimizer, rest)},
                                             std::vector<int64_t>{warmup});
}

/// `steps`: of the whole run.
Made make_first(const Config& config, torch::optim::Optimizer& optimizer, int64_t steps, int64_t steps_per_epoch) {
  const auto& type = config.schedule.type;
  if (type == "one_cycle") {
    return one_cycle(config.schedule, config.optimizer.lr, optimizer, steps);
  }
  if (type == "linear" || type == "polynomial") return warmup_and_fall(config, optimizer, steps_per_epoch);
  set_learning_rate(optimizer, 1);  // LambdaLR multiplies it
  return std::make_unique<lrs::LambdaLR>(
      optimizer, [config, steps_per_epoch](int64_t step) { return rate_of(config, step, steps_per_epoch); });
}

}  // namespace

Made make_schedule(const Config& config, torch::optim::Optimizer& optimizer, int64_t step, int64_t steps_per_epoch) {
  set_learning_rate(optimizer, config.optimizer.lr);
  const auto epochs = std::max(config.epochs, step / steps_per_epoch + 1);  // the doctor may train for longer
  auto schedule = as_user_error<c10::ValueError>(
      [&] { return make_first(config, optimizer, epochs * steps_per_epoch, steps_per_epoch); }, "key 'schedule': ");
  for (int64_t i = 0; i < step; ++i) schedule->step();
  return schedule;
}

}  // namespace train
