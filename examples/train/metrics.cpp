#include "metrics.h"

#include <cinttypes>
#include <cstdio>

namespace train {
namespace {

constexpr const char* kStepHeader = "epoch,step,loss,loss_scale,skipped,lr";
constexpr const char* kEpochHeader =
    "epoch,train_loss,test_accuracy,loss_scale,skipped_steps,lr,seconds,images_per_second,status";
constexpr const char* kScaleHeader = "epoch,step,scale_before,scale_after,skipped,reason,parameter,inf,nan,loss";

// The loss is beside the gradient: where it is not finite itself, no scale helps.
std::string scale_row(int64_t epoch, const StepLog& log) {
  char numbers[160], counts[80];
  std::snprintf(numbers, sizeof(numbers), "%" PRId64 ",%" PRId64 ",%.17g,%.17g,%d,", epoch, log.step + 1,
                log.scale_event->before, log.scale_event->after, log.skipped);
  std::snprintf(counts, sizeof(counts), ",%" PRId64 ",%" PRId64 ",%.9g", log.result.inf_count, log.result.nan_count, log.loss);
  return std::string(numbers) + name_of(log.scale_event->change) + "," + log.result.first_nonfinite + counts;
}

}  // namespace

Metrics::Metrics(const RunFolder& folder, int64_t steps, int64_t epochs)
    : steps_(folder.steps(), kStepHeader, steps),
      epochs_(folder.metrics(), kEpochHeader, epochs),
      scales_(folder.loss_scale(), kScaleHeader, rows_up_to_step(folder.loss_scale(), kScaleHeader, steps)) {}

void Metrics::add(int64_t epoch, const StepLog& log) {
  char row[160];
  // Nine digits tell any two float32 losses apart.
  std::snprintf(row, sizeof(row), "%" PRId64 ",%" PRId64 ",%.9g,%.17g,%d,%.9g", epoch, log.step + 1, log.loss, log.loss_scale,
                log.skipped, log.lr);
  steps_.append(row);
  if (log.scale_event) scales_.append(scale_row(epoch, log));
}

void Metrics::add(const EpochLog& log) {
  char row[240];
  std::snprintf(row, sizeof(row), "%" PRId64 ",%.6g,%.6f,%.17g,%" PRId64 ",%.9g,%.3f,%.1f,%s", log.epoch, log.train_loss,
                log.accuracy(), log.loss_scale, log.skipped, log.lr, log.seconds, log.images_per_second,
                log.diverged ? "diverged" : "ok");
  epochs_.append(row);
  steps_.flush();
  epochs_.flush();
  scales_.flush();
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %%", 100 * share);
  return text;
}

}  // namespace train
