#pragma once

#include <functional>
#include <optional>

#include <torch/optim/optimizer.h>

#include <apex_cpp/amp.h>

#include "config.h"
#include "data/dataset.h"
#include "models.h"

namespace train {

using Network = apex::amp::Model<Classifier>;

/// One step, as it is written to steps.csv.
struct StepLog {
  int64_t step = 0;  // over all epochs, from 0
  double lr = 0;
  double loss = 0;        // mean over the batch, unscaled
  double loss_scale = 1;  // that the step's gradients were made with
  bool skipped = false;
  std::optional<apex::amp::ScaleEvent> scale_event;  // what the step did to the loss scale, if anything
  apex::amp::StepResult result;                      // of a skipped step: why
};

/// Full batches in one epoch. The images that are left over take part in another epoch, since every epoch has its own order.
int64_t steps_per_epoch(const Config& config, const DataSplit& data);

/// Trains on every full batch of the training set once, in the order of (`config.seed`, `epoch`). Calls `on_step` after each
/// step and ends early where it answers false.
void train_epoch(const Config& config, const DataSplit& data, at::Device device, int64_t epoch, Network& net,
                 torch::optim::Optimizer& optimizer, const std::function<bool(const StepLog&)>& on_step);

/// How many of the set's images the network classifies correctly, in evaluation mode.
int64_t count_correct(const Dataset& set, const DataSplit& data, at::Device device, Network& net);

}  // namespace train
