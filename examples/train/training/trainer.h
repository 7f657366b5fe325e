#pragma once

#include <string>

#include "common/progress.h"
#include "config/config.h"
#include "data/dataset.h"
#include "logging/metrics.h"
#include "logging/run_folder.h"
#include "training/checkpoint.h"
#include "training/observer.h"
#include "training/team.h"

namespace train {

/// The device that the config asks for; `auto` is CUDA where there is a GPU; the process's current one. Throws UserError where
/// there is none.
at::Device chosen_device(const std::string& name);

/// Throws UserError where the batch size makes no step: fewer images than processes, or more than there are to train on.
void check_batch_size(const Config& config, const DataSplit& data, int64_t processes);

struct Outcome {
  int64_t epochs = 0;  // done
  EpochLog last;       // of this session; its accuracy is the run's
  int64_t skipped = 0;
  Position saved;          // what the checkpoint has
  std::string divergence;  // why training ended early; empty: it did not
};

/// Trains from the start, or from the run folder's checkpoint (`resume`), up to `config.epochs`; ends after epoch `stop_after`
/// as an interruption would, where that is not 0. The folder gets the config once that has made a network; `check_batch_size`
/// has let it pass. Where training diverges and the config says to climb, it goes back to the checkpoint and on at the next
/// level. The team's leader writes the folder's tables and checkpoint.
Outcome train(const Config& config, const DataSplit& data, const RunFolder& folder, bool resume, int64_t stop_after, Team& team,
              Observer& observer, common::Progress& progress);

}  // namespace train
