#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include <apex_cpp/amp.h>

#include "config.h"
#include "data/dataset.h"
#include "network.h"
#include "observer.h"
#include "team.h"

namespace train {

/// One step, as it is written to steps.csv.
struct StepLog {
  int64_t step = 0;  // over all epochs, from 0
  double lr = 0;
  double loss = 0;        // mean over the batch, unscaled
  double loss_scale = 1;  // that the step's gradients were made with
  bool skipped = false;
  std::optional<apex::amp::ScaleEvent> scale_event;  // what the step did to the loss scale, if anything
  apex::amp::StepResult result;                      // of a skipped step: why
  // Every `statistics_every` steps, on the process that leads: of the weights that the step began with, and of the gradients as
  // the backward pass left them, multiplied by the loss scale.
  std::vector<apex::amp::TensorStatistics> weights, scaled_grads;
};

/// Each process's equal share of a batch; what is left over of `config.batch_size` is not used.
int64_t images_per_process(const Config& config, const Team& team);
/// Images of a step, over all processes.
int64_t images_per_step(const Config& config, const Team& team);
/// Full batches in one epoch. The images that are left over take part in another epoch, since every epoch has its own order.
int64_t steps_per_epoch(const Config& config, const DataSplit& data, const Team& team);

/// Trains on every full batch of the training set once, in the order of (`config.seed`, `epoch`). Calls `on_step` after each
/// step and ends early where it answers false.
void train_epoch(const Config& config, const DataSplit& data, at::Device device, int64_t epoch, Network& net,
                 const Team::Forward& forward, torch::optim::Optimizer& optimizer, Team& team, Observer& observer,
                 const std::function<bool(const StepLog&)>& on_step);

/// How many of the set's images the network classifies correctly, in evaluation mode; the processes share the work.
int64_t count_correct(const Dataset& set, const DataSplit& data, at::Device device, Network& net, Team& team);

}  // namespace train
