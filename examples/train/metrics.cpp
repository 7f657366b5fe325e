#include "metrics.h"

#include <cinttypes>
#include <cstdio>

namespace train {
namespace {

constexpr const char* kStepHeader = "epoch,step,loss,loss_scale,skipped,lr";
constexpr const char* kEpochHeader =
    "epoch,train_loss,test_accuracy,loss_scale,skipped_steps,lr,seconds,images_per_second,status";

}  // namespace

Metrics::Metrics(const RunFolder& folder, int64_t steps, int64_t epochs)
    : steps_(folder.steps(), kStepHeader, steps), epochs_(folder.metrics(), kEpochHeader, epochs) {}

void Metrics::add(int64_t epoch, const StepLog& log) {
  char row[160];
  // Nine digits tell any two float32 losses apart.
  std::snprintf(row, sizeof(row), "%" PRId64 ",%" PRId64 ",%.9g,%.17g,%d,%.9g", epoch, log.step + 1, log.loss, log.loss_scale,
                log.skipped, log.lr);
  steps_.append(row);
}

void Metrics::add(const EpochLog& log) {
  char row[240];
  std::snprintf(row, sizeof(row), "%" PRId64 ",%.6g,%.6f,%.17g,%" PRId64 ",%.9g,%.3f,%.1f,%s", log.epoch, log.train_loss,
                log.accuracy(), log.loss_scale, log.skipped, log.lr, log.seconds, log.images_per_second,
                log.diverged ? "diverged" : "ok");
  epochs_.append(row);
  steps_.flush();
  epochs_.flush();
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %%", 100 * share);
  return text;
}

}  // namespace train
