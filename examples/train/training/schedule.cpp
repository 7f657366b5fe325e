#include "training/schedule.h"

#include <algorithm>
#include <cmath>

namespace train {
namespace {

constexpr double kPi = 3.14159265358979323846;

double cosine(double from, double to, double progress) {
  return to + (from - to) * 0.5 * (1 + std::cos(kPi * std::min(progress, 1.0)));
}

}  // namespace

double learning_rate(const Config& config, int64_t step, int64_t steps_per_epoch) {
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

}  // namespace train
