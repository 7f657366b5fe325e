#pragma once

#include <apex_cpp/tensorboard/summary_writer.h>

#include "config/config.h"
#include "logging/run_folder.h"
#include "training/epoch.h"

namespace train {

struct EpochLog;

/// A run as TensorBoard shows it (`tensorboard --logdir FOLDER`): curves of every step and epoch, the config as text, and for
/// steps that have statistics how the exponents of weights and gradients are spread. One event file a session; where a run goes
/// on, what earlier files have of later steps is not shown.
class TensorBoardLog {
 public:
  /// After `steps` steps. Throws UserError where the file cannot be written.
  TensorBoardLog(const RunFolder& folder, int64_t steps, const Config& config);

  void add(const StepLog& log);
  /// At the step that was added last. Also writes out everything added so far.
  void add(const EpochLog& log);

 private:
  apex::SummaryWriter writer_;
  int64_t step_;
};

}  // namespace train
