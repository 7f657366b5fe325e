#pragma once

#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include <apex_cpp/amp.h>
#include <apex_cpp/amp/statistics.h>
#include <apex_cpp/swa_utils.h>

#include "config/config.h"
#include "models/network.h"
#include "training/observer.h"
#include "training/team.h"
#include "training/torch_amp.h"

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

/// What is trained, and by what.
struct Training {
  Network& net;
  const Team::Forward& forward;
  torch::optim::Optimizer& optimizer;
  TorchAmp* torch_amp = nullptr;                             // in place of amp's level; null: by the level
  apex::swa_utils::ExponentialMovingAverage* ema = nullptr;  // of the weights; null: none
  torch::optim::Optimizer* second = nullptr;                 // trains other parameters beside `optimizer`, at a level of amp

  std::vector<torch::optim::Optimizer*> optimizers() const {
    if (!second) return {&optimizer};
    return {&optimizer, second};
  }

  /// That the next step will be made with.
  double loss_scale() const;
};

/// Images as the network gets them, and what they are.
struct Batch {
  at::Tensor images, labels;
};

/// One step of training. `measured`: whether the log gets statistics.
StepLog train_step(const Config& config, const Batch& batch, const Training& training, Team& team, Observer& observer,
                   bool measured);

}  // namespace train
