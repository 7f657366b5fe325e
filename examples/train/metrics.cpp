#include "metrics.h"

#include <cstdio>

namespace train {
namespace {

constexpr const char* kStepHeader = "epoch,step,loss,loss_scale,skipped,lr";
constexpr const char* kEpochHeader =
    "epoch,train_loss,test_accuracy,loss_scale,skipped_steps,lr,seconds,images_per_second,status";
constexpr const char* kScaleHeader = "epoch,step,scale_before,scale_after,skipped,reason,parameter,inf,nan,loss";

// Losses, rates and times to the digits of a float: the rest would be noise.
float short_of(double value) { return static_cast<float>(value); }

}  // namespace

Metrics::Metrics(const RunFolder& folder, int64_t steps, int64_t epochs)
    : steps_(folder.steps(), kStepHeader, steps),
      epochs_(folder.metrics(), kEpochHeader, epochs),
      scales_(folder.loss_scale(), kScaleHeader, rows_up_to_step(folder.loss_scale(), kScaleHeader, steps)) {}

void Metrics::add(int64_t epoch, const StepLog& log) {
  steps_.append(epoch, log.step + 1, short_of(log.loss), log.loss_scale, log.skipped, short_of(log.lr));
  if (!log.scale_event) return;
  const auto& result = log.result;
  const auto& scale = *log.scale_event;
  // The loss is beside the gradient: where it is not finite itself, no scale helps.
  scales_.append(epoch, log.step + 1, scale.before, scale.after, log.skipped, name_of(scale.change), result.first_nonfinite,
                 result.inf_count, result.nan_count, short_of(log.loss));
}

void Metrics::add(const EpochLog& log) {
  epochs_.append(log.epoch, short_of(log.train_loss), short_of(log.accuracy()), log.loss_scale, log.skipped, short_of(log.lr),
                 short_of(log.seconds), short_of(log.images_per_second), log.diverged ? "diverged" : "ok");
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
