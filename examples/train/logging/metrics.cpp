#include "logging/metrics.h"

#include <cstdio>

namespace train {
namespace {

constexpr const char* kStepHeader = "epoch,step,loss,loss_scale,skipped,lr";
constexpr const char* kEpochHeader =
    "epoch,train_loss,test_accuracy,loss_scale,skipped_steps,lr,seconds,images_per_second,status";
constexpr const char* kScaleHeader = "epoch,step,scale_before,scale_after,skipped,reason,parameter,inf,nan,loss";
constexpr const char* kStatisticsHeader =
    "epoch,step,loss_scale,tensor,name,numel,abs_max,mean,norm,zeros,inf,nan,lowest_exponent,highest_exponent,float16_zero,"
    "float16_subnormal,bfloat16_zero,bfloat16_subnormal";

// Losses, rates and times to the digits of a float: the rest would be noise.
float short_of(double value) { return static_cast<float>(value); }

// Gradients hold the loss scale already: what underflows is asked for at scale 1. Without a value that is finite and not 0
// there are no exponents: fields are empty.
void append_statistics(CsvFile& file, int64_t epoch, const StepLog& log, const char* tensor,
                       const std::vector<apex::amp::TensorStatistics>& records) {
  for (const auto& record : records) {
    const auto half = record.underflow(1, at::kHalf), bfloat16 = record.underflow(1, at::kBFloat16);
    const auto& exponents = record.exponents;
    file.append(epoch, log.step + 1, log.loss_scale, tensor, record.name, record.numel, record.abs_max, record.mean,
                record.norm, record.zeros, record.inf, record.nan,
                exponents.empty() ? "" : std::to_string(exponents.begin()->first),
                exponents.empty() ? "" : std::to_string(exponents.rbegin()->first), half.zero, half.subnormal, bfloat16.zero,
                bfloat16.subnormal);
  }
}

}  // namespace

Metrics::Metrics(const RunFolder& folder, int64_t steps, int64_t epochs, const Config& config)
    : steps_(folder.steps(), kStepHeader, steps),
      epochs_(folder.metrics(), kEpochHeader, epochs),
      scales_(folder.loss_scale(), kScaleHeader, rows_up_to_step(folder.loss_scale(), kScaleHeader, steps)) {
  if (config.tensorboard) tensorboard_.emplace(folder, steps, config);
  if (config.statistics_every == 0) return;
  statistics_.emplace(folder.statistics(), kStatisticsHeader, rows_up_to_step(folder.statistics(), kStatisticsHeader, steps));
}

void Metrics::add(int64_t epoch, const StepLog& log) {
  steps_.append(epoch, log.step + 1, short_of(log.loss), log.loss_scale, log.skipped, short_of(log.lr));
  if (tensorboard_) tensorboard_->add(log);
  if (statistics_) {
    append_statistics(*statistics_, epoch, log, "weight", log.weights);
    append_statistics(*statistics_, epoch, log, "gradient", log.scaled_grads);
  }
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
  if (statistics_) statistics_->flush();
  if (tensorboard_) tensorboard_->add(log);
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %%", 100 * share);
  return text;
}

}  // namespace train
