#pragma once

#include <optional>
#include <string>

#include "config/config.h"
#include "logging/csv_file.h"
#include "logging/run_folder.h"
#include "logging/tensorboard_log.h"
#include "training/epoch.h"

namespace train {

/// One epoch, as it is written to metrics.csv.
struct EpochLog {
  int64_t epoch = 0;      // from 1
  double train_loss = 0;  // mean over the epoch's steps
  int64_t correct = 0;
  int64_t tested = 0;
  int64_t skipped = 0;  // steps skipped in this epoch
  double loss_scale = 1;
  double lr = 0;
  double seconds = 0;  // of training, testing not counted
  double images_per_second = 0;
  bool diverged = false;

  double accuracy() const { return tested > 0 ? static_cast<double>(correct) / static_cast<double>(tested) : 0; }
};

/// The tables of a run folder: steps.csv, with a row for every step, and loss_scale.csv, with a row for every step that moved
/// the loss scale or overflowed, and its gradient; both depend on the config and the seed alone (one machine and thread count
/// given). metrics.csv has a row for every epoch, with the times beside. statistics.csv has a row for every weight and gradient
/// of the steps that have statistics. Where the config asks for it, TensorBoard's event file beside them.
class Metrics {
 public:
  /// Keeps the rows of the first `steps` and `epochs` where a run goes on. `config` says whether there is a statistics.csv, and
  /// an event file.
  Metrics(const RunFolder& folder, int64_t steps, int64_t epochs, const Config& config = {});

  void add(int64_t epoch, const StepLog& log);
  /// Also writes out everything added so far.
  void add(const EpochLog& log);

 private:
  CsvFile steps_;
  CsvFile epochs_;
  CsvFile scales_;
  std::optional<CsvFile> statistics_;
  std::optional<TensorBoardLog> tensorboard_;
};

/// 0.98333 -> "98.33 %".
std::string percent(double share);

}  // namespace train
