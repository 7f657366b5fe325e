#pragma once

#include <functional>

#include "config/config.h"
#include "data/dataset.h"
#include "training/observer.h"
#include "training/step.h"
#include "training/team.h"

namespace train {

/// Each process's equal share of a batch; what is left over of `config.batch_size` is not used.
int64_t images_per_process(const Config& config, const Team& team);
/// Images of a step, over all processes.
int64_t images_per_step(const Config& config, const Team& team);
/// Full batches in one epoch. The images that are left over take part in another epoch, since every epoch has its own order.
int64_t steps_per_epoch(const Config& config, const DataSplit& data, const Team& team);

/// Trains on every full batch of the training set once, in the order of (`config.seed`, `epoch`). Calls `on_step` after each
/// step and ends early where it answers false.
void train_epoch(const Config& config, const DataSplit& data, at::Device device, int64_t epoch, const Training& training,
                 Team& team, Observer& observer, const std::function<bool(const StepLog&)>& on_step);

/// How many of the test images the network classifies correctly, in evaluation mode and with averaged weights
/// where there are some; the processes share the work.
int64_t count_correct(const DataSplit& data, at::Device device, const Training& training, Team& team);

}  // namespace train
