#pragma once

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/comparison/measurement.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "training.h"

namespace bench::train {

/// Bytes of one contender.
struct Footprint {
  int64_t weights = 0;      // the model's parameters and buffers
  int64_t gradients = 0;    // the model's, after the backward pass
  int64_t activations = 0;  // what comes to life with the forward pass and stays for the backward pass, 16-bit copies included
  int64_t held = 0;         // all that is alive after a step: weights, masters, gradients, the optimizer's state
  int64_t peak = 0;         // the most that is alive within a step that is not the first; 0 where there was none

  int64_t of_model() const { return weights + gradients + activations; }
};

/// A network in training, one of several that take turns on one thread: each of its turns begins with the casts with which its
/// last one ended, and leaves the thread's as they were.
class Contender {
 public:
  /// Made from the same seed as all others, on `device`. Takes no step yet.
  Contender(const Task& task, Way way, at::Device device, bool quick);

  const Way& way() const { return way_; }
  /// One step, and what it takes in nanoseconds. The work of a GPU is waited for.
  double step();
  /// A step that is looked at as well.
  double counted_step();
  const Footprint& footprint() const { return footprint_; }
  /// What was left to do after the backward pass in each `step`, in nanoseconds: the end of the block of scale_loss and the
  /// optimizer's step. Of a GPU, which is behind by then, with what it has left of the backward pass.
  const std::vector<double>& updates() const { return updates_; }
  double loss_scale() const { return training_->loss_scale(); }

 private:
  class Turn;

  double timed(const Observer& reached);
  void look(Point point);

  Way way_;
  Batch batch_;
  std::shared_ptr<apex::amp::detail::TensorMemory> memory_ = std::make_shared<apex::amp::detail::TensorMemory>();
  std::optional<apex::amp::detail::SavedCasts> casts_;  // none before the first turn
  std::unique_ptr<Training> training_;
  Footprint footprint_;
  std::vector<double> updates_;
  int64_t live_before_forward_ = 0;
  bool has_stepped_ = false;
};

}  // namespace bench::train
